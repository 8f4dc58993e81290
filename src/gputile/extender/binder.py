"""The bind verb: choose the cards, take them in the ledger, send the Binding, and never lose track of it.

Between the choice and the ledger's entry nothing is awaited, so two binds never see the same cards free. A Binding
whose answer was lost may or may not have been executed: its cards stay taken until the pod itself tells, or until
the API server can no longer execute it. Meanwhile the pod is offered its own node only.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from gputile.api.core import Binding, Pod
from gputile.api.wellknown import ALLOCATION_ANNOTATION
from gputile.device.request import Request
from gputile.extender.cluster import Cluster
from gputile.kube.errors import Conflict, KubeError, NotFound
from gputile.ledger.events import Assumed, Forgotten, PodApplied, PodDeleted, TimePassed
from gputile.placement.fit import Refusal
from gputile.scheduling.claim import claim
from gputile.scheduling.decision import Decision
from gputile.scheduling.placer import Placer

log = logging.getLogger(__name__)

# The API server gives up on a request after 60 s (--request-timeout); what it has not executed by then, it never will.
ANSWER_LOST_FOR_GOOD_S = 75.0
CONFIRMATION_S = 10.0


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time comes from: ``monotonic`` in seconds, ``unix_ns`` in nanoseconds since the epoch."""

    monotonic: Callable[[], float]
    unix_ns: Callable[[], int]


class BindError(Exception):
    """The pod was not bound, or nobody knows yet; the text goes to kube-scheduler, which tries again."""


class Binder:
    """Sends Bindings, one at a time for each pod, any number at a time for different pods."""

    def __init__(self, placer: Placer, cluster: Cluster, clock: Clock) -> None:
        self._placer = placer
        self._ledger = placer.ledger
        self._cluster = cluster
        self._clock = clock
        self._under_way: dict[str, asyncio.Task[Decision | None]] = {}
        self._unsettled: dict[str, Decision] = {}  # by UID: Bindings whose answer was lost

    async def bind(self, pod: Pod, request: Request | None, node: str) -> Decision | None:
        """Bind ``pod`` to ``node``, and return the decision; None where there was nothing to decide.

        A caller that goes away does not stop a Binding that is under way.

        Raises:
            BindError: the pod is not bound to ``node`` as far as is known.
        """
        uid = pod.metadata.uid
        while (earlier := self._under_way.get(uid)) is not None:
            await asyncio.wait([earlier])
        task = asyncio.create_task(self._bind(pod, request, node))
        self._under_way[uid] = task
        task.add_done_callback(lambda done: self._finished(uid, done))
        return await asyncio.shield(task)

    def _finished(self, uid: str, task: asyncio.Task[Decision | None]) -> None:
        if self._under_way.get(uid) is task:
            del self._under_way[uid]
        if not task.cancelled():
            task.exception()  # seen here even if the caller went away

    async def drain(self) -> None:
        """Wait for the Bindings that are under way."""
        while self._under_way:
            await asyncio.wait(list(self._under_way.values()))

    async def _bind(self, pod: Pod, request: Request | None, node: str) -> Decision | None:
        meta = pod.metadata
        if request is None:
            plain = Decision(node, (), None)
            await self._send(pod, plain.binding(meta.namespace, meta.name, meta.uid), plain)
            return None
        held = self._ledger.booking(meta.uid)
        if held is None or held.tentative:
            decision = claim(self._placer, pod, request, node, self._clock.unix_ns())
            if isinstance(decision, Refusal):
                raise BindError(f"node {node}: {decision.text}")
            booking = decision.booking(pod, request.shape.trust_group, self._clock.monotonic())
            if booking is not None:
                self._ledger.apply(Assumed(booking))
        elif held.node != node:
            raise BindError(f"pod {pod.key} has cards of node {held.node}: an earlier Binding is not settled yet")
        elif meta.uid in self._unsettled and held.assumed_at is not None:
            # The same cards again, since the earlier Binding may still be executed; the wait for it starts anew.
            decision = self._unsettled[meta.uid]
            self._ledger.apply(Forgotten(meta.uid))
            self._ledger.apply(Assumed(replace(held, assumed_at=self._clock.monotonic())))
        else:
            return None  # bound to this very node already
        await self._send(pod, decision.binding(meta.namespace, meta.name, meta.uid), decision)
        return decision

    async def _send(self, pod: Pod, binding: Binding, decision: Decision) -> None:
        """Send the Binding; on return the pod is bound as decided, else BindError is raised."""
        uid = pod.metadata.uid
        try:
            await self._cluster.bind(binding)
        except Conflict as error:
            await self._after_conflict(pod, decision, error)
        except NotFound as error:
            self._tell(uid, None)
            raise BindError(f"pod {pod.key} is gone") from error
        except KubeError as error:
            if not error.may_have_been_executed:
                if uid not in self._unsettled:
                    self._ledger.apply(Forgotten(uid))
                raise BindError(f"the Binding of pod {pod.key} was refused: {error}") from error
            self._unsettled[uid] = decision
            log.warning("the answer to a Binding was lost", extra={"pod": pod.key, "node": decision.node})
            found = await self._look(pod, error)
            if not _bound_as(found, decision):
                raise BindError(f"the answer to the Binding of pod {pod.key} was lost: {error}") from error
        self._unsettled.pop(uid, None)

    async def _after_conflict(self, pod: Pod, decision: Decision, error: Conflict) -> None:
        """A 409: the pod is bound already, be it by an earlier Binding of ours, or may not be bound now."""
        uid, earlier = pod.metadata.uid, pod.metadata.uid in self._unsettled
        self._unsettled[uid] = decision
        found = await self._look(pod, error)
        if _bound_as(found, decision):
            return
        if found is not None and not found.spec.node_name and not earlier:
            self._unsettled.pop(uid, None)
            self._ledger.apply(Forgotten(uid))
        raise BindError(f"the Binding of pod {pod.key} met a conflict: {error}") from error

    async def _look(self, pod: Pod, why: KubeError) -> Pod | None:
        """Read the pod from the API server and tell the ledger; None where it is gone.

        Raises:
            BindError: it cannot be read, so that nobody knows yet; what was assumed stays.
        """
        uid = pod.metadata.uid
        before = self._ledger.booking(uid)
        try:
            found = await self._cluster.pod(pod.metadata.namespace, pod.metadata.name)
        except KubeError as error:
            raise BindError(f"whether pod {pod.key} is bound is not known yet: {why}; then: {error}") from error
        # What the watch has said of the pod meanwhile may be newer than this answer, and is not said again.
        if before is not None and self._ledger.booking(uid) is before:
            self._tell(uid, found)
        return found if found is not None and found.metadata.uid == pod.metadata.uid else None

    def _tell(self, uid: str, found: Pod | None) -> None:
        if found is None or found.metadata.uid != uid:
            self._ledger.apply(PodDeleted(uid))
            self._unsettled.pop(uid, None)
        else:
            self._ledger.apply(PodApplied(found))

    async def settle(self) -> None:
        """End holds, and look after Bindings that no watch has confirmed in time; to be called every few seconds."""
        self._ledger.apply(TimePassed(self._clock.unix_ns()))
        now = self._clock.monotonic()
        assumed = {b.uid for b in self._ledger.overdue(now, 0.0)}
        for uid in self._unsettled.keys() - assumed - self._under_way.keys():
            del self._unsettled[uid]
        for booking in self._ledger.overdue(now, CONFIRMATION_S):
            if booking.uid in self._under_way or booking.assumed_at is None:
                continue
            try:
                found = await self._cluster.pod(booking.namespace, booking.name)
            except KubeError as error:
                log.warning("a Binding cannot be settled yet", extra={"pod": booking.key, "why": str(error)})
                continue
            if booking.uid in self._under_way or self._ledger.booking(booking.uid) is not booking:
                continue
            self._tell(booking.uid, found)
            bound = found is not None and found.spec.node_name
            if not bound and now - booking.assumed_at >= ANSWER_LOST_FOR_GOOD_S:
                log.warning("a Binding was never executed", extra={"pod": booking.key, "node": booking.node})
                self._unsettled.pop(booking.uid, None)
                self._ledger.apply(Forgotten(booking.uid))


def _bound_as(pod: Pod | None, decision: Decision) -> bool:
    """Return whether the pod carries the decision's node and allocation."""
    if pod is None:
        return False
    written = pod.metadata.annotations.get(ALLOCATION_ANNOTATION)
    return pod.spec.node_name == decision.node and written == decision.annotations().get(ALLOCATION_ANNOTATION)
