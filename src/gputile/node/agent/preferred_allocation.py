"""Chooses preferred GPUs: those that the pod already has, then the booked ones, then GPUs with room.

The booking can be out of date: the GPU may have failed, or the kubelet may have allocated it to another pod. A static
pod, or a pod whose ``nodeName`` was set by hand, has no booking at all. It then gets the fullest GPUs that have room
for it, and the annotation is written afterwards.

The kubelet completes a short answer with IDs of its own choice, from any GPU. So an answer always has the full number
of IDs on the right number of GPUs, unless no such set exists.

A pod counts with the devices that it holds once it has been admitted, and with its booking until then.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gputile.api.well_known import GPU_MEMORY, MIG_PREFIX
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.inventory import Gpu
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, PodDevices, by_gpu, in_order, with_shares
from gputile.node.agent.rules import SHARED_RESOURCES, AllocationConflict, AllocationRules, IdsByGpu, Occupied, rules_of


def preferred(
    state: AllocationState,
    caller: Caller | None,
    resource: str,
    available: Iterable[str],
    must: Iterable[str],
    size: int,
) -> tuple[str, ...]:
    """Return ``size`` IDs of ``available`` that the kubelet should take, including all of ``must``.

    They are the first set that can be served. If there is none, they are on as few GPUs as possible, and the check at
    ``Allocate`` reports the problem.
    """
    kept = frozenset(must)
    free = tuple(device_id for device_id in available if device_id not in kept)
    pod, key = (caller.pod, caller.key) if caller is not None else (None, "")
    before = state.device_table.get(pod.uid) if pod is not None else None
    held = before or state.new_row(pod.uid if pod is not None else "", key, pod)
    in_use = _in_use(state, free, resource, held.uid, caller)
    offered = by_gpu((*kept, *(device_id for device_id in free if device_id not in in_use)))
    choice = _Choice(state, caller, resource, size, held, offered, by_gpu(kept))
    for gpus in choice.options() if not resource.startswith(MIG_PREFIX) else ():
        ids = spread_evenly(size, gpus, offered, choice.must)
        if ids is not None and choice.can_be_served(ids):
            return ids
    unhealthy = {gpu.uuid for gpu in state.node_config.inventory.gpus if not gpu.healthy}
    usable = {gpu: ids for gpu, ids in offered.items() if gpu not in unhealthy}
    return on_some_gpu(size, usable, choice.must)


def _in_use(state: AllocationState, ids: Iterable[str], resource: str, uid: str, caller: Caller | None) -> set[str]:
    """Return the IDs that this container may not use, even if the kubelet regards them as free.

    An init container may use the IDs of its pod's other containers: these inherit its IDs, and if they run already, it
    does not run again.
    """
    own = caller.container if caller is not None else ""
    init = caller is not None and caller.request is not None and caller.request.phase is Phase.INIT
    table = state.device_table
    return {
        device_id
        for held in table.holders(resource, ids)
        for each in held.devices
        if each.resource == resource
        and (
            held.uid != uid
            or (not init and each.container != own and each.phase is not Phase.INIT and each.directory in table.started)
        )
        for device_id in each.ids
    }


def spread_evenly(size: int, gpus: Sequence[str], available: IdsByGpu, must: IdsByGpu) -> tuple[str, ...] | None:
    """Return ``size`` IDs, the same number from each of ``gpus``, including all of ``must``.

    ``available`` includes ``must``, as in the kubelet's request. The result is None if there are not enough IDs.
    """
    if not gpus or size % len(gpus) or not must.keys() <= set(gpus):
        return None
    each, chosen = size // len(gpus), []
    for gpu in gpus:
        kept = must.get(gpu, frozenset())
        others = in_order(available.get(gpu, frozenset()) - kept)[: max(0, each - len(kept))]
        if len(kept) + len(others) != each:
            return None
        chosen += [*in_order(kept), *others]
    return tuple(chosen)


def on_some_gpu(size: int, available: IdsByGpu, must: IdsByGpu) -> tuple[str, ...]:
    """Return up to ``size`` IDs on as few GPUs as possible, ``must`` first: the answer of last resort."""
    chosen = [device_id for ids in must.values() for device_id in in_order(ids)]
    for gpu in sorted(available, key=lambda gpu: (gpu not in must, -len(available[gpu]))):
        chosen += in_order(available[gpu] - must.get(gpu, frozenset()))[: size - len(chosen)]
        if len(chosen) >= size:
            break
    return tuple(chosen)


@dataclass
class _Choice:
    """One choice of device IDs, based on the current state of the node.

    ``held`` is the row of the pod so far; ``caller`` is the container that the IDs are for, None if it is unknown.
    """

    state: AllocationState
    caller: Caller | None
    resource: str
    size: int
    held: PodDevices
    available: IdsByGpu
    must: IdsByGpu

    def __post_init__(self) -> None:
        self.pod = self.caller.pod if self.caller else None
        self.rules = rules_of(self.state)

    def options(self) -> Iterator[tuple[str, ...]]:
        """Yield the GPUs that the pod has, those booked for the container and for the pod, and GPUs that fit now.

        The first call for a pod prefers GPUs with IDs and room for the whole pod, if there are any: the kubelet reuses
        the IDs of an init container for the containers after it, and adds more where they need more.
        """
        pod, request = self.pod, self.pod.request if self.pod else None
        of_container = pod.booked(self.caller.container) if pod and self.caller else ()
        of_pod = pod.allocation.gpus if pod and pod.allocation else ()
        known = [tuple(share.uuid for share in shares) for shares in (of_container, of_pod)]
        if self.resource not in SHARED_RESOURCES:
            yield from (*known, self._fitting(self.size, 1, 0, 0))
            return
        known.insert(0, tuple(sorted(self.held.gpus)) or self._near())
        count, unit = request.shape.gpus if request is not None else 1, self.held.unit_mib
        memory = self.resource == GPU_MEMORY
        if request is not None and not self.held.gpus:
            mib, percent = request.shape.mib, request.shape.percent
            ids = -(-mib // unit) if memory else percent
            gpus = self.state.node_config.inventory.gpus
            roomy = {gpu.uuid for gpu in gpus if self._fits(self.rules, gpu, ids, mib, percent)}
            yield from (uuids for uuids in known if roomy.issuperset(uuids))
            yield self._fitting(count, ids, mib, percent)
        ids = self.size // count
        yield from (*known, self._fitting(count, ids, ids * unit if memory else 0, 0 if memory else ids))

    def can_be_served(self, ids: tuple[str, ...]) -> bool:
        container, asked = (self.caller.container, self.caller.request) if self.caller else ("", None)
        devices = ContainerDevices(container, asked.phase if asked else Phase.APP, self.resource, ids)
        gpus = self.pod.request.shape.gpus if self.pod and self.pod.request else 1
        try:
            self.rules.check(self.held.replaced(devices), devices, gpus)
        except AllocationConflict:
            return False
        return True

    def _near(self) -> tuple[str, ...]:
        """Return the GPUs of the previous Allocate call if its pod is unknown and it was for a different resource.

        The kubelet allocates the resources of a container one after the other.
        """
        last = self.state.device_table.get(self.state.admission.last_uid)
        if self.caller is not None or last is None or last.identified or self.resource in last.ids_by_gpu:
            return ()
        return tuple(sorted(last.gpus))

    def _fitting(self, count: int, ids: int, mib: int, percent: int) -> tuple[str, ...]:
        """Return the fullest ``count`` GPUs with this many IDs and this much room each; with time-slicing the emptiest.

        The bookings of pods that are not admitted yet count too.
        """
        state, uid = self.state, self.held.uid
        waiting = (
            with_shares(state.new_row(pod.uid, pod.key, pod), pod.allocation.gpus)
            for pod in state.pods.values()
            if pod.alive and pod.uid != uid and pod.allocation is not None and state.device_table.get(pod.uid) is None
        )
        rules = rules_of(state, DeviceTable((*state.device_table, *waiting)))
        order = {
            gpu.uuid: len(list(rules.device_table.on(gpu.uuid, uid)))
            if state.node_config.replicated
            else rules.left(gpu.uuid, uid)[0]
            for gpu in state.node_config.inventory.gpus
            if gpu.healthy and gpu.uuid not in self.must and self._fits(rules, gpu, ids, mib, percent)
        }
        return (*self.must, *sorted(order, key=order.__getitem__))[:count]

    def _fits(self, rules: AllocationRules, gpu: Gpu, ids: int, mib: int, percent: int) -> bool:
        wanted = with_shares(self.held, (GpuShare(gpu.uuid, gpu.index, mib, percent),))
        try:
            rules.check_claim(wanted)
        except Occupied:
            return False
        return len(self.available.get(gpu.uuid, ())) >= ids
