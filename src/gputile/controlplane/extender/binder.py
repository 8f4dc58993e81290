"""Executes the verb bind: books GPUs, sends the Binding, then confirms or releases the booking.

If the response to a Binding is lost, the Binding may have been executed, and its GPUs stay booked
until the result is known. A Binding is valid for one resourceVersion of its pod. So another write
to the unbound pod (``fence``) makes the Binding impossible, and the response to that write shows
whether the Binding was executed. Until then, the pod fits only the node of the Binding.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence

from gputile.api.core import Binding, Pod
from gputile.api.well_known import FENCE_ANNOTATION
from gputile.controlplane.event_loop import run_concurrently
from gputile.core.refusal import Refusal
from gputile.core.scheduling.bind import PodBinding, assume_pod, pod_was_read
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.reservation_rules import waits_for_first
from gputile.kube.client import Connection
from gputile.kube.errors import ApiError, Conflict, KubeError, NotFound
from gputile.kube.objects import list_all
from gputile.kube.writes import annotate_pod_status, bind_pod, read_pod

log = logging.getLogger(__name__)

CONFIRMATION_S = 10.0
# the most versions of a pod for which a Binding is sent while other clients write to the pod
_VERSIONS = 4
# how long a pod waits for the first pod of its gang; the time-out of kube-scheduler is 5 s
FIRST_POD_S = 2.5
# This is shorter than the API server's own limit, and long enough for a busy etcd. If no response
# arrives in time, ``_resolve`` finds out the result.
BIND_SECONDS = 15.0
POD_SECONDS = 5.0
# The API server aborts a request 60 s after it has read the request (--request-timeout). Waiting
# is less certain than a fence, because another API server may hang with the request for longer. So
# waiting is used only for pods that cannot be written to.
ANSWER_LOST_FOR_GOOD_S = 75.0


class NoLongerActive(KubeError):
    """Another replica may lead by now. No request was sent."""


class PodApi:
    """The binder's requests to the API server. ``active`` returns whether this replica may act.

    Methods raise the errors of ``gputile.kube.errors``.
    """

    def __init__(self, connection: Connection, active: Callable[[], bool]) -> None:
        self._connection = connection
        self._active = active

    async def bind(self, binding: Binding) -> None:
        """Send the Binding if this replica still holds the Lease.

        The pod's resourceVersion was read before this check of the Lease. So no Binding is sent for
        a version that the pod got after the Lease was lost. The next holder of the Lease fences off
        Bindings for older versions (``extender.fence``).

        Raises:
            NoLongerActive: the Lease was lost before the Binding was sent.
        """
        if not self._active():
            raise NoLongerActive("the Lease was lost before the Binding was sent")
        await bind_pod(self._connection, binding, within=BIND_SECONDS)

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Read a pod from the API server, not from a cache. Return None if it does not exist."""
        return await read_pod(self._connection, namespace, name, within=POD_SECONDS)

    async def fence(self, namespace: str, name: str) -> Pod | None:
        """Write to a pod, so that its resourceVersion changes.

        Return the stored pod, or None if the pod is gone. The written value is random, because a
        patch that changes nothing would not change the version.
        """
        mark = {FENCE_ANNOTATION: secrets.token_hex(8)}
        return await annotate_pod_status(
            self._connection, namespace, name, mark, within=POD_SECONDS
        )

    async def unbound(self) -> Sequence[Pod]:
        """List all unbound pods from the API server, not from a cache."""
        return await list_all(
            self._connection, "/api/v1/pods", Pod, {"fieldSelector": "spec.nodeName="}
        )


class BindError(Exception):
    """The pod was not bound, or the result is not known yet. kube-scheduler retries."""


class Binder:
    """Sends Bindings, concurrently for different pods but one at a time for the same pod.

    ``monotonic`` returns seconds. ``unix_ns`` returns nanoseconds since the epoch.
    """

    def __init__(
        self,
        engine: PlacementEngine,
        pod_api: PodApi,
        monotonic: Callable[[], float],
        unix_ns: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._pod_api = pod_api
        self._monotonic, self._unix_ns = monotonic, unix_ns
        self._under_way: dict[str, asyncio.Task[str]] = {}
        # the Bindings whose responses were lost, by UID; at most one per pod
        self._unconfirmed: dict[str, PodBinding] = {}
        self._ended = asyncio.Event()  # set, and replaced, whenever a bind ends

    async def read(self, namespace: str, name: str, uid: str) -> Pod:
        """Read the pod with this UID from the API server.

        Raises:
            BindError: the pod cannot be read, or is gone.
        """
        try:
            pod = await self._pod_api.pod(namespace, name)
        except KubeError as error:
            raise BindError(f"pod {namespace}/{name} cannot be read: {error}") from error
        if pod is None or pod.metadata.uid != uid:
            raise BindError(f"pod {namespace}/{name} with UID {uid} is gone")
        return pod

    async def bind(self, pod: Pod, node: str) -> str:
        """Bind ``pod`` to ``node``, and return its GPUs as text.

        The text is empty if the pod requests no GPUs or is already bound to ``node``. A caller that
        disconnects does not stop a Binding in progress.

        Raises:
            BindError: the pod is not bound to ``node``, or the result is not known yet.
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
            task.exception()  # marked as retrieved, because the caller may have disconnected
        self._ended.set()
        self._ended = asyncio.Event()

    async def conclude(self) -> bool:
        """Wait for Bindings in progress, and resolve Bindings without a response.

        Return whether all results are known.
        """
        while self._under_way:
            await asyncio.wait(list(self._under_way.values()))
        await self._resolve_all()
        return not self._unconfirmed

    async def _bind(self, pod: Pod, node: str) -> str:
        uid = pod.metadata.uid
        earlier = self._unconfirmed.get(uid)
        if earlier is not None and await self._resolve(earlier) and earlier.node == node:
            return ""
        with contextlib.suppress(TimeoutError):  # pods of a gang arrive concurrently, in any order
            async with asyncio.timeout(FIRST_POD_S):
                while waits_for_first(self._ledger, uid):
                    await self._ended.wait()
        binding = assume_pod(self._engine, pod, node, self._unix_ns(), self._monotonic())
        if isinstance(binding, Refusal):
            raise BindError(binding.text)
        if binding is None:
            return ""
        await self._write(binding)
        binding.confirm()
        return binding.gpus

    async def _write(self, binding: PodBinding) -> None:
        """Send the Binding, and return when the pod is bound as decided.

        kube-scheduler's version of the pod may be outdated. Then the pod is read, and the Binding
        is sent again for the current version. The Binding is not repeated if the pod is being
        deleted or has lost its reservation (``PodBinding.obstacle``).

        Raises:
            BindError: the pod is not bound, or the result is not known yet.
        """
        pod, conflict = binding.pod, None
        for _ in range(_VERSIONS):
            if binding.version:
                conflict = await self._send(binding)
                if conflict is None:
                    return
            found = await self._read_unbound(binding, conflict)
            if found is None:
                return
            if (obstacle := binding.obstacle(found)) is not None:
                binding.forget()
                raise BindError(f"pod {pod.key} {obstacle}") from conflict
            if found.metadata.resource_version == binding.version:
                break
            binding.version = found.metadata.resource_version
        binding.forget()
        raise BindError(f"the Binding of pod {pod.key} met a conflict: {conflict}") from conflict

    async def _send(self, binding: PodBinding) -> Conflict | None:
        """Send the Binding for one version of the pod. Return a conflict, or None for success.

        A conflict (409) means that the pod is already bound, has another version, or may not be
        bound now.

        Raises:
            BindError: the Binding failed for another reason, or its result is not known yet.
        """
        pod = binding.pod
        try:
            await self._pod_api.bind(binding.body)
        except Conflict as error:
            return error
        except NotFound as error:
            binding.forget(gone=True)
            raise BindError(f"pod {pod.key} is gone") from error
        except KubeError as error:
            if not error.may_have_been_executed:
                binding.forget()
                raise BindError(f"the Binding of pod {pod.key} was refused: {error}") from error
            self._answer_lost(binding)
            log.warning(
                "the answer to a Binding was lost", extra={"pod": pod.key, "node": binding.node}
            )
            if not await self._resolve(binding):
                raise BindError(
                    f"the answer to the Binding of pod {pod.key} was lost: {error}"
                ) from error
        return None

    async def _read_unbound(self, binding: PodBinding, conflict: Conflict | None) -> Pod | None:
        """Return the pod from the API server if it is unbound, or None if it is bound as decided.

        Raises:
            BindError: the pod cannot be read, is gone, or is bound differently.
        """
        pod, before = binding.pod, self._ledger.booking(binding.pod.metadata.uid)
        try:
            found = await self._pod_api.pod(pod.metadata.namespace, pod.metadata.name)
        except KubeError as error:
            self._answer_lost(binding)
            raise BindError(
                f"the Binding of pod {pod.key} met a conflict: {conflict}; then: {error}"
            ) from error
        if binding.is_unbound(found):
            return found
        pod_was_read(self._ledger, pod.metadata.uid, before, found, self._monotonic())
        if not binding.is_executed(found):
            raise BindError(
                f"the Binding of pod {pod.key} met a conflict: {conflict}"
            ) from conflict
        return None

    def _answer_lost(self, binding: PodBinding) -> None:
        binding.lost_at = self._monotonic()
        self._unconfirmed[binding.pod.metadata.uid] = binding

    async def _resolve(self, binding: PodBinding) -> bool:
        """Find out whether a Binding with a lost response was executed, or make it impossible.

        Return whether the Binding was executed.

        Raises:
            BindError: the result is not known yet. The GPUs stay booked.
        """
        meta = binding.pod.metadata
        refused: ApiError | None = None
        before = self._ledger.booking(meta.uid)
        try:
            try:
                found = await self._pod_api.fence(meta.namespace, meta.name)
            except ApiError as error:
                # The pod cannot be written to. Its version, or the time for which the API server
                # has refused all writes, shows the result.
                refused = error
                found = await self._pod_api.pod(meta.namespace, meta.name)
        except KubeError as error:
            binding.lost_at = self._monotonic()
            why = f"{refused}; {error}" if refused else str(error)
            raise BindError(
                f"it is not known yet whether pod {binding.pod.key} is bound: {why}"
            ) from error
        if refused is None or not refused.refused_for_good:
            binding.lost_at = self._monotonic()
        may_end = self._monotonic() - binding.lost_at >= ANSWER_LOST_FOR_GOOD_S
        if self._unconfirmed.get(meta.uid) is not binding:
            return False  # another call has resolved the Binding and updated the ledger
        if not binding.is_unbound(found):
            pod_was_read(self._ledger, meta.uid, before, found, self._monotonic())
        elif found.metadata.resource_version == binding.version and not may_end:
            raise BindError(
                f"it is not known yet whether pod {binding.pod.key} is bound: it cannot be written "
                f"to"
            )
        else:
            binding.forget()
        del self._unconfirmed[meta.uid]
        return binding.is_executed(found)

    async def resolve_unconfirmed(self) -> None:
        """Expire reservations, and find out the results of unconfirmed Bindings.

        A Binding is unconfirmed if its response was lost, or if the watch has not shown it within
        ``CONFIRMATION_S``. In the second case, the pod is read. Call this method every few seconds.
        """
        self._engine.ledger.set_time(self._unix_ns())
        await self._resolve_all()
        overdue = self._ledger.overdue(self._monotonic(), CONFIRMATION_S)
        await run_concurrently(
            [(each.namespace, each.name, each.uid) for each in overdue], self._read_back
        )

    async def _read_back(self, overdue: tuple[str, str, str]) -> bool:
        namespace, name, uid = overdue
        if uid in self._under_way or uid in self._unconfirmed:
            return True
        before = self._ledger.booking(uid)
        try:
            found = await self._pod_api.pod(namespace, name)
        except KubeError as error:
            log.warning(
                "a Binding cannot be confirmed yet",
                extra={"pod": f"{namespace}/{name}", "why": str(error)},
            )
            return False
        if uid not in self._under_way:
            pod_was_read(self._ledger, uid, before, found, self._monotonic())
        return True

    async def _resolve_all(self) -> None:
        await run_concurrently(list(self._unconfirmed.values()), self._resolve_idle)

    async def _resolve_idle(self, binding: PodBinding) -> bool:
        """Resolve a Binding unless another call does. Return False if the result is unknown."""
        uid = binding.pod.metadata.uid
        if uid in self._under_way or self._unconfirmed.get(uid) is not binding:
            return True
        try:
            await self._resolve(binding)
        except BindError as error:
            log.warning(
                "a Binding cannot be resolved yet",
                extra={"pod": binding.pod.key, "why": str(error)},
            )
            return False
        return True
