"""Executes the verb bind: it chooses the GPUs, books them, sends the Binding and learns its outcome.

Choice and booking are one step (``assume_pod``), so two binds never see the same GPUs free. A Binding
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
from gputile.controlplane.event_loop import several_at_once
from gputile.controlplane.extender.fence import ANSWER_LOST_FOR_GOOD_S
from gputile.controlplane.extender.pod_api import PodApi
from gputile.core.scheduling.assume import AlreadyBound, BindRefusal, BindTime, FinalVerdict, WaitsForPod, assume_pod
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.pod_binding import PodBinding, PodReading, overdue
from gputile.core.scheduling.reserved_place import end_reservations
from gputile.kube.errors import ApiError, Conflict, KubeError, NotFound

log = logging.getLogger(__name__)

CONFIRMATION_S = 10.0
_VERSIONS = 4  # a Binding is tried for so many versions of a pod that others write to all the time
# How long a pod waits for the first one of its gang: kube-scheduler brings it soon, and gives up on us after 5 s.
FIRST_POD_S = 2.5


@dataclass(frozen=True, slots=True)
class BinderClock:
    """Where time comes from: ``monotonic`` in seconds, ``unix_ns`` in nanoseconds since the epoch."""

    monotonic: Callable[[], float]
    unix_ns: Callable[[], int]

    def now(self) -> BindTime:
        """Return both times as they are now."""
        return BindTime(self.unix_ns(), self.monotonic())


class BindError(Exception):
    """The pod was not bound, or nobody knows yet; the text goes to kube-scheduler, which tries again."""


@dataclass(frozen=True, slots=True)
class _Unconfirmed:
    """A Binding whose answer was lost: for which version of the pod, and when (monotonic, seconds)."""

    binding: PodBinding
    version: str
    lost_at: float


class Binder:
    """Sends Bindings, one at a time for each pod, any number at a time for different pods."""

    def __init__(self, engine: PlacementEngine, pod_api: PodApi, clock: BinderClock) -> None:
        self._engine = engine
        self._pod_api = pod_api
        self._clock = clock
        self._under_way: dict[str, asyncio.Task[str]] = {}
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

    async def bind(self, pod: Pod, node: str) -> str:
        """Bind ``pod`` to ``node``, and return its GPUs for people; "" where nothing had to be decided.

        A caller that goes away does not stop a Binding that is under way.

        Raises:
            BindError: the pod is not bound to ``node`` as far as is known.
        """
        uid = pod.metadata.uid
        while (earlier := self._under_way.get(uid)) is not None:
            await asyncio.wait([earlier])
        task = asyncio.create_task(self._bind(pod, node))
        self._under_way[uid] = task
        task.add_done_callback(lambda done: self._finished(uid, done))
        return await asyncio.shield(task)

    def _finished(self, uid: str, task: asyncio.Task[str]) -> None:
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

    async def _bind(self, pod: Pod, node: str) -> str:
        uid = pod.metadata.uid
        if uid in self._unconfirmed and await self._resolve(self._unconfirmed[uid], node):
            return ""
        verdict = await self._assume(pod, node)
        if isinstance(verdict, BindRefusal):
            raise BindError(verdict.text)
        if isinstance(verdict, AlreadyBound):
            return ""
        await self._send(verdict)
        verdict.confirm()
        return verdict.gpus

    async def _assume(self, pod: Pod, node: str) -> FinalVerdict:
        """Book the pod's GPUs, or say why it gets none.

        The first pod of a gang's plan goes first, where it is about to: pods come in any order, and at once.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_POD_S):
                while True:
                    verdict = assume_pod(self._engine, pod, node, self._clock.now(), wait=True)
                    if not isinstance(verdict, WaitsForPod):
                        return verdict
                    await self._ended.wait()
        return assume_pod(self._engine, pod, node, self._clock.now(), wait=False)

    async def _send(self, binding: PodBinding) -> None:
        """Send the Binding; on return the pod is bound so, else BindError is raised.

        kube-scheduler's view of the pod may be older than the pod. Then it is read, and the Binding sent again for the
        version that it has; but not where its gang has given it another place since (``PodBinding.obstacle``).
        """
        version, error = binding.version, None
        for _ in range(_VERSIONS):
            if version:
                error = await self._try(binding, version)
                if error is None:
                    return
            current = await self._after_conflict(binding, version, error)
            if current is None:
                return
            if current == version:
                break
            version = current
        binding.take_back()
        raise BindError(f"the Binding of pod {binding.pod.key} met a conflict: {error}") from error

    async def _try(self, binding: PodBinding, version: str) -> Conflict | None:
        """Send the Binding for one version of the pod; return the conflict that it met, None where the pod is bound."""
        pod = binding.pod
        try:
            await self._pod_api.bind(binding.at(version))
        except Conflict as error:
            return error
        except NotFound as error:
            binding.take_back(gone=True)
            raise BindError(f"pod {pod.key} is gone") from error
        except KubeError as error:
            if not error.may_have_been_executed:
                binding.take_back()
                raise BindError(f"the Binding of pod {pod.key} was refused: {error}") from error
            unconfirmed = _Unconfirmed(binding, version, self._clock.monotonic())
            self._unconfirmed[pod.metadata.uid] = unconfirmed
            log.warning("the answer to a Binding was lost", extra={"pod": pod.key, "node": binding.node})
            if not await self._resolve(unconfirmed, binding.node):
                raise BindError(f"the answer to the Binding of pod {pod.key} was lost: {error}") from error
        return None

    async def _after_conflict(self, binding: PodBinding, version: str, why: Conflict | None) -> str | None:
        """Return the version of a pod that is still to be bound, None where it is bound as decided.

        A 409 says that the pod is bound already, has another version or may not be bound now.
        """
        pod, reading = binding.pod, binding.begin_reading()
        try:
            found = await self._pod_api.pod(pod.metadata.namespace, pod.metadata.name)
        except KubeError as error:
            self._unconfirmed[pod.metadata.uid] = _Unconfirmed(binding, version, self._clock.monotonic())
            raise BindError(f"the Binding of pod {pod.key} met a conflict: {why}; then: {error}") from error
        if binding.is_unbound(found):
            if (obstacle := binding.obstacle(found)) is None:
                return found.metadata.resource_version
            binding.take_back()
            raise BindError(f"pod {pod.key} {obstacle}") from why
        reading.apply(found, self._clock.monotonic())
        if not binding.is_executed(found):
            raise BindError(f"the Binding of pod {pod.key} met a conflict: {why}") from why
        return None

    async def _resolve(self, unconfirmed: _Unconfirmed, node: str) -> bool:
        """Find out what became of a Binding, or make it impossible; return whether it bound the pod to ``node``.

        Raises:
            BindError: nobody knows yet; what was assumed stays.
        """
        binding, may_end = unconfirmed.binding, False
        meta, reading = binding.pod.metadata, binding.begin_reading()
        try:
            found = await self._pod_api.fence(meta.namespace, meta.name)
        except ApiError as error:
            found = await self._read_unwritable(unconfirmed, error)
            # an API server that has a bad time may still execute the Binding, however late
            lost_for_s = self._clock.monotonic() - unconfirmed.lost_at
            may_end = error.refused_for_good and lost_for_s >= ANSWER_LOST_FOR_GOOD_S
        except KubeError as error:
            raise BindError(f"whether pod {binding.pod.key} is bound is not known yet: {error}") from error
        if self._unconfirmed.get(meta.uid) is not unconfirmed:
            return False  # another call has resolved it meanwhile: the ledger has it
        if binding.is_unbound(found):
            if found.metadata.resource_version == unconfirmed.version and not may_end:
                raise BindError(f"whether pod {binding.pod.key} is bound is not known yet: it cannot be written to")
            binding.take_back()
        else:
            reading.apply(found, self._clock.monotonic())
        del self._unconfirmed[meta.uid]
        return binding.is_executed(found) and binding.node == node

    async def _read_unwritable(self, unconfirmed: _Unconfirmed, refused: KubeError) -> Pod | None:
        """Return a pod that may not be written to, once its version or the time tells what became of its Binding."""
        pod = unconfirmed.binding.pod
        try:
            return await self._pod_api.pod(pod.metadata.namespace, pod.metadata.name)
        except KubeError as error:
            raise BindError(f"whether pod {pod.key} is bound is not known yet: {refused}; {error}") from error

    async def resolve_unconfirmed(self) -> None:
        """End reservations that are over, and read back Bindings that no watch has confirmed in time.

        To be called every few seconds.
        """
        end_reservations(self._engine, self._clock.unix_ns())
        await self._resolve_all()
        await several_at_once(overdue(self._engine, self._clock.monotonic(), CONFIRMATION_S), self._read_back)

    async def _read_back(self, reading: PodReading) -> bool:
        if reading.uid in self._under_way or reading.uid in self._unconfirmed:
            return True
        try:
            found = await self._pod_api.pod(reading.namespace, reading.name)
        except KubeError as error:
            log.warning("a Binding cannot be confirmed yet", extra={"pod": reading.key, "why": str(error)})
            return False
        if reading.uid not in self._under_way:
            reading.apply(found, self._clock.monotonic())
        return True

    async def _resolve_all(self) -> None:
        await several_at_once(list(self._unconfirmed.values()), self._resolve_idle)

    async def _resolve_idle(self, unconfirmed: _Unconfirmed) -> bool:
        """Find out what became of a Binding that nobody is dealing with; return whether that is known."""
        pod = unconfirmed.binding.pod
        uid = pod.metadata.uid
        if uid in self._under_way or self._unconfirmed.get(uid) is not unconfirmed:
            return True
        try:
            await self._resolve(unconfirmed, unconfirmed.binding.node)
        except BindError as error:
            log.warning("a Binding cannot be resolved yet", extra={"pod": pod.key, "why": str(error)})
            return False
        return True
