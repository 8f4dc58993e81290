"""The bind verb: choose the GPUs, book them in the ledger, send the Binding, and never lose track of it.

Choice and booking are one step (``assume``), so two binds never see the same GPUs free. A Binding
whose answer was lost may or may not have been executed: its GPUs stay booked until that is known. It is for one
resourceVersion of its pod; so one write to the pod that leaves it unbound makes it impossible for good (``fence``),
and the answer to that write tells which of both it is. Meanwhile the pod is offered its own node only.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.controlplane.extender.fence import ANSWER_LOST_FOR_GOOD_S
from gputile.controlplane.extender.parallel_requests import several_at_once
from gputile.controlplane.extender.pod_api import PodApi
from gputile.core.devices.allocation import encode_allocation
from gputile.core.devices.request import Request
from gputile.core.devices.reservation import reservation_of
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.events import Confirmed, Forgotten, PodDeleted, PodRead, TimePassed
from gputile.core.scheduling.assume import assume
from gputile.core.scheduling.decision import Decision
from gputile.core.scheduling.gang_reservation import waits_for
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.errors import ApiError, Conflict, KubeError, NotFound

log = logging.getLogger(__name__)

CONFIRMATION_S = 10.0
_VERSIONS = 4  # of a pod that others write to all the time a Binding is tried for so many
# How long a pod waits for the first one of its gang: kube-scheduler brings it soon, and gives up on us after 5 s.
FIRST_POD_S = 2.5


@dataclass(frozen=True, slots=True)
class BinderClock:
    """Where time comes from: ``monotonic`` in seconds, ``unix_ns`` in nanoseconds since the epoch."""

    monotonic: Callable[[], float]
    unix_ns: Callable[[], int]


class BindError(Exception):
    """The pod was not bound, or nobody knows yet; the text goes to kube-scheduler, which tries again."""


@dataclass(frozen=True, slots=True)
class _Unconfirmed:
    """A Binding whose answer was lost: for which version of the pod, and when (monotonic, seconds)."""

    pod: Pod
    decision: Decision
    version: str
    lost_at: float


class Binder:
    """Sends Bindings, one at a time for each pod, any number at a time for different pods."""

    def __init__(self, engine: PlacementEngine, pod_api: PodApi, clock: BinderClock) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._pod_api = pod_api
        self._clock = clock
        self._under_way: dict[str, asyncio.Task[Decision | None]] = {}
        # By UID. There is at most one for each pod that has GPUs booked here and is not bound yet.
        self._unconfirmed: dict[str, _Unconfirmed] = {}
        self._ended = asyncio.Event()  # set, and replaced, whenever a bind has ended

    async def read(self, namespace: str, name: str, uid: str) -> Pod:
        """Return the pod with this UID as the API server has it.

        Raises:
            BindError: it cannot be read, or is gone.
        """
        try:
            pod = await self._pod_api.pod(namespace, name)
        except KubeError as error:
            raise BindError(f"pod {namespace}/{name} cannot be read: {error}") from error
        if pod is None or pod.metadata.uid != uid:
            raise BindError(f"pod {namespace}/{name} with UID {uid} is gone")
        return pod

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
        self._ended.set()
        self._ended = asyncio.Event()

    async def conclude(self) -> bool:
        """Wait for the Bindings under way, and resolve those without an answer; return whether none is left."""
        while self._under_way:
            await asyncio.wait(list(self._under_way.values()))
        await self._resolve_all()
        return not self._unconfirmed

    async def _bind(self, pod: Pod, request: Request | None, node: str) -> Decision | None:
        meta = pod.metadata
        if meta.uid in self._unconfirmed and await self._resolve(self._unconfirmed[meta.uid], node):
            return None
        if request is None:
            await self._send(pod, Decision(node, (), None))
            return None
        await self._wait_for_first_pod(meta.uid)
        booking = self._ledger.booking(meta.uid)
        if booking is not None and not booking.reserved:
            if booking.node != node:
                raise BindError(f"pod {pod.key} has GPUs of node {booking.node} already")
            return None  # bound to this very node already
        decision = assume(self._engine, pod, request, node, self._clock.unix_ns(), self._clock.monotonic())
        if not isinstance(decision, Decision):
            raise BindError(f"node {node}: {decision.text}")
        await self._send(pod, decision)
        if decision.plan:
            self._ledger.apply(Confirmed(meta.uid))  # those that wait for it need not wait for the watch
        return decision

    async def _wait_for_first_pod(self, uid: str) -> None:
        """Let the first pod of a gang's plan go first, where it is about to: pods come in any order, and at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_POD_S):
                while waits_for(self._ledger, uid) is not None:
                    await self._ended.wait()

    async def _send(self, pod: Pod, decision: Decision) -> None:
        """Send the Binding; on return the pod is bound as decided, else BindError is raised.

        kube-scheduler's view of the pod may be older than the pod. Then it is read, and the Binding sent again for the
        version that it has; but not where its gang has given it another place since (``gang_reservation.claim``).
        """
        meta, version, error = pod.metadata, decision.version or pod.metadata.resource_version, None
        for _ in range(_VERSIONS):
            if version:
                error = await self._try(pod, decision, version)
                if error is None:
                    return
            current = await self._after_conflict(pod, decision, version, error)
            if current is None:
                return
            if current == version:
                break
            version = current
        self._ledger.apply(Forgotten(meta.uid))
        raise BindError(f"the Binding of pod {pod.key} met a conflict: {error}") from error

    async def _try(self, pod: Pod, decision: Decision, version: str) -> Conflict | None:
        """Send the Binding for one version of the pod; return the conflict that it met, None where the pod is bound."""
        meta = pod.metadata
        try:
            await self._pod_api.bind(decision.binding(pod, version))
        except Conflict as error:
            return error
        except NotFound as error:
            self._ledger.apply(PodDeleted(meta.uid))
            raise BindError(f"pod {pod.key} is gone") from error
        except KubeError as error:
            if not error.may_have_been_executed:
                self._ledger.apply(Forgotten(meta.uid))
                raise BindError(f"the Binding of pod {pod.key} was refused: {error}") from error
            unconfirmed = _Unconfirmed(pod, decision, version, self._clock.monotonic())
            self._unconfirmed[meta.uid] = unconfirmed
            log.warning("the answer to a Binding was lost", extra={"pod": pod.key, "node": decision.node})
            if not await self._resolve(unconfirmed, decision.node):
                raise BindError(f"the answer to the Binding of pod {pod.key} was lost: {error}") from error
        return None

    async def _after_conflict(self, pod: Pod, decision: Decision, version: str, why: Conflict | None) -> str | None:
        """Return the version of a pod that is still to be bound, None where it is bound as decided.

        A 409 says that the pod is bound already, has another version or may not be bound now.
        """
        uid = pod.metadata.uid
        before = self._ledger.booking(uid)
        try:
            found = await self._pod_api.pod(pod.metadata.namespace, pod.metadata.name)
        except KubeError as error:
            self._unconfirmed[uid] = _Unconfirmed(pod, decision, version, self._clock.monotonic())
            raise BindError(f"the Binding of pod {pod.key} met a conflict: {why}; then: {error}") from error
        if found is not None and found.metadata.uid == uid and not found.spec.node_name:
            reservation = reservation_of(found) if decision.plan else None
            if found.metadata.deletion_timestamp:
                problem = "is being deleted"
            elif decision.plan and (reservation is None or reservation.plan != decision.plan):
                problem = f"has no place in plan {decision.plan} any more"
            else:
                return found.metadata.resource_version
            self._ledger.apply(Forgotten(uid))
            raise BindError(f"pod {pod.key} {problem}") from why
        self._apply(uid, found, before)
        if not _bound_as(found, uid, decision):
            raise BindError(f"the Binding of pod {pod.key} met a conflict: {why}") from why
        return None

    async def _resolve(self, unconfirmed: _Unconfirmed, node: str) -> bool:
        """Find out what became of a Binding, or make it impossible; return whether it bound the pod to ``node``.

        Raises:
            BindError: nobody knows yet; what was assumed stays.
        """
        meta = unconfirmed.pod.metadata
        before, may_end = self._ledger.booking(meta.uid), False
        try:
            found = await self._pod_api.fence(meta.namespace, meta.name)
        except ApiError as error:
            found = await self._read_unwritable(unconfirmed, error)
            # an API server that has a bad time may still execute the Binding, however late
            may_end = error.refused_for_good and self._long_ago(unconfirmed)
        except KubeError as error:
            raise BindError(f"whether pod {unconfirmed.pod.key} is bound is not known yet: {error}") from error
        if self._unconfirmed.get(meta.uid) is not unconfirmed:
            return False  # another call has resolved it meanwhile: the ledger has it
        if found is not None and found.metadata.uid == meta.uid and not found.spec.node_name:
            if found.metadata.resource_version == unconfirmed.version and not may_end:
                raise BindError(f"whether pod {unconfirmed.pod.key} is bound is not known yet: it cannot be written to")
            self._ledger.apply(Forgotten(meta.uid))
        else:
            self._apply(meta.uid, found, before)
        del self._unconfirmed[meta.uid]
        return _bound_as(found, meta.uid, unconfirmed.decision) and unconfirmed.decision.node == node

    async def _read_unwritable(self, unconfirmed: _Unconfirmed, refused: KubeError) -> Pod | None:
        """Return a pod that may not be written to, once its version or the time tells what became of its Binding."""
        try:
            return await self._pod_api.pod(unconfirmed.pod.metadata.namespace, unconfirmed.pod.metadata.name)
        except KubeError as error:
            raise BindError(
                f"whether pod {unconfirmed.pod.key} is bound is not known yet: {refused}; {error}"
            ) from error

    def _long_ago(self, unconfirmed: _Unconfirmed) -> bool:
        return self._clock.monotonic() - unconfirmed.lost_at >= ANSWER_LOST_FOR_GOOD_S

    def _apply(self, uid: str, found: Pod | None, before: Booking | None) -> None:
        """Apply to the ledger what was read of a pod; ``before`` is what the ledger had of it when the reading began.

        What the watch has said of the pod meanwhile may be newer than what was read, and is not said again.
        """
        if found is None or found.metadata.uid != uid:
            self._ledger.apply(PodDeleted(uid))
        elif before is not None and self._ledger.booking(uid) is before:
            self._ledger.apply(PodRead(found, self._clock.monotonic()))

    async def resolve_unconfirmed(self) -> None:
        """End reservations that are over, and read back Bindings that no watch has confirmed in time.

        To be called every few seconds.
        """
        self._ledger.apply(TimePassed(self._clock.unix_ns()))
        await self._resolve_all()
        await several_at_once(self._ledger.overdue(self._clock.monotonic(), CONFIRMATION_S), self._read_back)

    async def _read_back(self, booking: Booking) -> bool:
        """Read a pod that nobody is dealing with; return whether the API server answered."""
        if booking.uid in self._under_way or booking.uid in self._unconfirmed:
            return True
        try:
            found = await self._pod_api.pod(booking.namespace, booking.name)
        except KubeError as error:
            log.warning("a Binding cannot be confirmed yet", extra={"pod": booking.key, "why": str(error)})
            return False
        if booking.uid not in self._under_way:
            self._apply(booking.uid, found, booking)
        return True

    async def _resolve_all(self) -> None:
        await several_at_once(list(self._unconfirmed.values()), self._resolve_idle)

    async def _resolve_idle(self, unconfirmed: _Unconfirmed) -> bool:
        """Find out what became of a Binding that nobody is dealing with; return whether that is known."""
        uid = unconfirmed.pod.metadata.uid
        if uid in self._under_way or self._unconfirmed.get(uid) is not unconfirmed:
            return True
        try:
            await self._resolve(unconfirmed, unconfirmed.decision.node)
        except BindError as error:
            log.warning("a Binding cannot be resolved yet", extra={"pod": unconfirmed.pod.key, "why": str(error)})
            return False
        return True


def _bound_as(pod: Pod | None, uid: str, decision: Decision) -> bool:
    """Return whether it is the pod with this UID, and carries the decision's node and allocation."""
    if pod is None or pod.metadata.uid != uid:
        return False
    decided = encode_allocation(decision.allocation) if decision.allocation else None
    return pod.spec.node_name == decision.node and pod.metadata.annotations.get(ALLOCATION_ANNOTATION) == decided
