"""Prefers for a container the GPUs its pod is on already, then the booked ones, then where it fits.

The booking can be out of date: the GPU may have failed, or the kubelet may have put another pod there. A pod
can have no booking at all: a static pod, or one whose node was named by hand. It then gets the fullest GPUs that have
room for it, and the annotation is written afterwards.

The kubelet fills up whatever is missing with IDs of its own choice, from any GPU. So an answer always has the whole
number of IDs on the right number of GPUs, and only where no such set exists is it less.

A pod counts with what it really holds once it has been admitted, and with what is booked for it until then.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gputile.api.well_known import GPU_MEMORY, MIG_PREFIX
from gputile.core.devices.inventory import CORE_PERCENT
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.device_table import ContainerDevices, PodDevices, by_gpu, in_order
from gputile.node.agent.node_config import NodeConfig
from gputile.node.agent.rules import SHARED_RESOURCES, AllocationConflict, rules_of


@dataclass(slots=True)
class _Taken:
    """What pods hold of a GPU, or have booked until they are admitted."""

    mib: int = 0
    percent: int = 0
    pods: int = 0

    def add(self, mib: int, percent: int) -> None:
        self.mib, self.percent, self.pods = self.mib + mib, self.percent + percent, self.pods + 1


def _taken_by_others(state: AllocationState, uid: str) -> dict[str, _Taken]:
    """Return what pods other than ``uid`` have of each GPU."""
    taken = {gpu.uuid: _Taken() for gpu in state.node_config.inventory.gpus}
    for held in state.device_table:
        if held.uid != uid:
            for gpu in held.gpus & taken.keys():
                taken[gpu].add(held.mib(gpu), held.percent(gpu))
    for pod in state.pods.values():
        waits = pod.alive and pod.uid != uid and state.device_table.get(pod.uid) is None
        for share in pod.allocation.gpus if waits and pod.allocation is not None else ():
            if share.uuid in taken:
                taken[share.uuid].add(share.mib, share.percent)
    return taken


IdsByGpu = Mapping[str, frozenset[str]]


def spread_evenly(size: int, gpus: Sequence[str], available: IdsByGpu, must: IdsByGpu) -> tuple[str, ...] | None:
    """Return ``size`` IDs, as many of each of ``gpus``, with all of ``must``; None where there are not enough.

    ``available`` includes ``must``, as in the kubelet's request.
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
    """Return up to ``size`` IDs on as few GPUs as possible, those of ``must`` first: the answer of last resort."""
    chosen = [device_id for ids in must.values() for device_id in in_order(ids)]
    for gpu in sorted(available, key=lambda gpu: (gpu not in must, -len(available[gpu]))):
        chosen += in_order(available[gpu] - must.get(gpu, frozenset()))[: size - len(chosen)]
        if len(chosen) >= size:
            break
    return tuple(chosen)


def booked_gpus(node_config: NodeConfig, uuids: Iterable[str]) -> tuple[str, ...]:
    """Return the booked GPUs; none if one of them is not there or not healthy."""
    wanted = tuple(uuids)
    healthy = {gpu.uuid for gpu in node_config.inventory.gpus if gpu.healthy}
    return wanted if healthy.issuperset(wanted) else ()


def preferred(
    state: AllocationState,
    caller: Caller | None,
    resource: str,
    available: Iterable[str],
    must: Iterable[str],
    size: int,
) -> tuple[str, ...]:
    """Return ``size`` IDs of ``available`` that the kubelet should take, with all of ``must``."""
    kept = frozenset(must)
    free = tuple(device_id for device_id in available if device_id not in kept)
    pod, key = (caller.pod, caller.key) if caller is not None else (None, "")
    before = state.device_table.get(pod.uid) if pod is not None else None
    held = before or state.new_row(pod.uid if pod is not None else "", key, pod)
    in_use = _in_use(state, free, resource, held.uid, caller)
    offered = by_gpu((*kept, *(device_id for device_id in free if device_id not in in_use)))
    return _Choice(state, caller, resource, size, held, offered, by_gpu(kept)).choose()


def _in_use(state: AllocationState, ids: Iterable[str], resource: str, uid: str, caller: Caller | None) -> set[str]:
    """Return IDs that this container may not use, even if the kubelet calls them free.

    An init container may use IDs of its pod's other containers: they take them over, or it does not run again.
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


@dataclass
class _Choice:
    """One choice of device IDs, on the state of the node at this moment.

    ``held`` is what the pod has so far; ``caller`` is the container that asks, None where nobody knows.
    """

    state: AllocationState
    caller: Caller | None
    resource: str
    size: int
    held: PodDevices
    available: IdsByGpu
    must: IdsByGpu
    usable: list[str] = field(init=False)
    booked: tuple[str, ...] = field(init=False)
    taken: Mapping[str, _Taken] = field(init=False)

    def __post_init__(self) -> None:
        self.usable = [gpu.uuid for gpu in self.state.node_config.inventory.gpus if gpu.healthy]
        self.pod = self.caller.pod if self.caller else None
        shares = self.pod.booked(self.caller.container) if self.pod and self.caller else ()
        self.booked = booked_gpus(self.state.node_config, (share.uuid for share in shares))
        self.taken = _taken_by_others(self.state, self.held.uid)

    def choose(self) -> tuple[str, ...]:
        """Return the IDs for the container that asks: the first set that can be served.

        Where none can, the answer is IDs of as few GPUs as possible, and the check at ``Allocate`` says what is wrong
        with them.
        """
        if self.resource.startswith(MIG_PREFIX):
            return on_some_gpu(self.size, self.available, self.must)
        if self.state.node_config.replicated:
            return self._replicas()
        for gpus in self._shared_options() if self.resource in SHARED_RESOURCES else self._whole_options():
            ids = spread_evenly(self.size, gpus, self.available, self.must)
            if ids is not None and self._can_be_served(ids):
                return ids
        usable = {gpu: self.available[gpu] for gpu in self.usable if gpu in self.available}
        return on_some_gpu(self.size, usable, self.must)

    def _can_be_served(self, ids: tuple[str, ...]) -> bool:
        container, asked = (self.caller.container, self.caller.request) if self.caller else ("", None)
        devices = ContainerDevices(container, asked.phase if asked else Phase.APP, self.resource, ids)
        gpus = self.pod.request.shape.gpus if self.pod and self.pod.request else 1
        try:
            rules_of(self.state).check(self.held.replaced(devices), devices, gpus)
        except AllocationConflict:
            return False
        return True

    def _replicas(self) -> tuple[str, ...]:
        """Return IDs of replicated GPUs: the booked ones, else different GPUs first, the least used of these."""
        rules = rules_of(self.state)
        friendly = [gpu for gpu in self.usable if rules.stranger_on(self.held, gpu) is None]
        if set(self.booked) <= set(friendly):
            ids = spread_evenly(self.size, self.booked, self.available, self.must)
            if ids is not None and self._can_be_served(ids):
                return ids
        chosen = [device_id for ids in self.must.values() for device_id in in_order(ids)]
        left = {gpu: in_order(self._ids(gpu) - self.must.get(gpu, frozenset()))[::-1] for gpu in friendly}
        load = {gpu: self.taken[gpu].pods for gpu in friendly}
        while len(chosen) < self.size and any(left.values()):
            gpu = min((gpu for gpu in left if left[gpu]), key=load.__getitem__)
            chosen.append(left[gpu].pop())
            load[gpu] += 1
        return tuple(chosen)

    def _whole_options(self) -> Iterator[tuple[str, ...]]:
        """Yield the booked GPUs, then the first ones that nobody has."""
        yield self.booked
        free = [gpu for gpu in self.usable if self._ids(gpu) and gpu not in self.must and not self.taken[gpu].pods]
        yield (*self.must, *free[: max(0, self.size - len(self.must))])

    def _shared_options(self) -> Iterator[tuple[str, ...]]:
        """Yield the GPUs that the pod is on, the booked ones of the container and the pod, then what fits now.

        GPUs with enough IDs and room for the whole pod come first.
        """
        pod, request = self.pod, self.pod.request if self.pod else None
        near = tuple(sorted(self.held.gpus)) or self._near()
        booked = (
            booked_gpus(self.state.node_config, (s.uuid for s in pod.allocation.gpus)) if pod and pod.allocation else ()
        )
        roomy = [gpu for gpu in self.usable if self._has_room_for_the_pod(gpu)]
        if request is not None and not self.held.gpus:
            for gpus in (near, self.booked, booked, self._fitting(roomy, request.shape.mib, request.shape.percent)):
                if set(gpus) <= set(roomy):
                    yield gpus
        count = request.shape.gpus if request is not None else 1
        memory, unit = self.resource == GPU_MEMORY, self.held.unit_mib
        mib, percent = (self.size * unit // count, 0) if memory else (0, self.size // count)
        yield from (near, self.booked, booked, self._fitting(self.usable, mib, percent))

    def _near(self) -> tuple[str, ...]:
        """Return the GPUs of the previous Allocate call if its pod is unknown and it was for a different resource.

        The kubelet asks for all resources of a container one after the other.
        """
        last = self.state.device_table.get(self.state.admission.last_uid)
        if self.caller is not None or last is None or last.identified or self.resource in last.ids_by_gpu:
            return ()
        return tuple(sorted(last.gpus))

    def _ids(self, gpu: str) -> frozenset[str]:
        return self.available.get(gpu, frozenset())

    def _has_room_for_the_pod(self, gpu: str) -> bool:
        """Return whether a GPU has IDs, memory and compute for the whole pod, where this is the first of its calls.

        The kubelet gives the IDs of an init container to the containers after it, and fills up what they lack. So a
        GPU that has no IDs for them, since a pod that was deleted by force has them yet, must not get the first one.
        """
        if self.pod is None or self.pod.request is None:
            return True
        shape, unit = self.pod.request.shape, self.held.unit_mib
        ids = -(-shape.mib // unit) if self.resource == GPU_MEMORY else shape.percent
        mib, percent = rules_of(self.state).left(gpu, self.pod.uid)
        return len(self._ids(gpu)) >= ids and mib >= shape.mib and percent >= shape.percent

    def _fitting(self, gpus: Sequence[str], mib: int, percent: int) -> tuple[str, ...]:
        """Return the fullest of ``gpus`` with IDs and so much room left on each, as many as the pod asks for."""
        count = self.pod.request.shape.gpus if self.pod and self.pod.request else 1
        rules, taken = rules_of(self.state), self.taken
        fitting = [
            gpu
            for gpu in self.state.node_config.gpus(gpus)
            if len(self._ids(gpu.uuid)) * count >= self.size
            and taken[gpu.uuid].mib + mib <= gpu.mib
            and taken[gpu.uuid].percent + percent <= CORE_PERCENT
            and (taken[gpu.uuid].pods < rules.most_pods or not self.state.node_config.mode.isolates_memory)
            and rules.stranger_on(self.held, gpu.uuid) is None
        ]
        fitting.sort(key=lambda gpu: gpu.mib - taken[gpu.uuid].mib)
        return tuple(gpu.uuid for gpu in fitting[:count])
