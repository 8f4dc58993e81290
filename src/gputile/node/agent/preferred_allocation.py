"""Prefers for a container the GPUs its pod is on already, then the booked ones, then where it fits.

The booking can be out of date: the GPU may have failed, or the kubelet may have put another pod there. A pod
can have no booking at all: a static pod, or one whose node was named by hand. Then the very rules that the scheduler
follows choose from what is free now, and the annotation is written afterwards.

The kubelet fills up whatever is missing with IDs of its own choice, from any GPU. So an answer always has the whole
number of IDs on the right number of GPUs, and only where no such set exists is it less.

A pod counts with what it really holds once it has been admitted, and with what is booked for it until then. The facts
of the node are made by the very function that the scheduler's ledger uses, from the same annotation that the agent
publishes.

A booked pod needs no choice. The code that chooses needs numpy, 10 MiB on every node, so it is imported when needed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, ObjectMeta
from gputile.api.well_known import GPU_MEMORY, INVENTORY_ANNOTATION, MIG_PREFIX, MODE_LABEL, TOPOLOGY_GPU, Mode
from gputile.core.devices.inventory import Inventory, encode_inventory
from gputile.core.devices.request import Phase, RequestKind, Shape
from gputile.core.ledger.node_info import NodeInfo, node_info_of
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.device_ids import by_gpu, in_order
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, PodDevices
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import NodeConfig
from gputile.node.agent.rules import SHARED_RESOURCES, AllocationConflict, rules_of

if TYPE_CHECKING:
    from gputile.core.ledger.snapshot import GpuState


@dataclass(slots=True)
class _Taken:
    mib: int = 0
    percent: int = 0
    pods: int = 0
    groups: frozenset[str] = frozenset()


def node_info(inventory: Inventory, mode: Mode, labels: Mapping[str, str], configuration: Configuration) -> NodeInfo:
    meta = ObjectMeta(
        name="self",
        labels={**labels, MODE_LABEL: mode.value},
        annotations={INVENTORY_ANNOTATION: encode_inventory(inventory)},
    )
    return node_info_of(Node(metadata=meta), configuration)


class FreeCapacity:
    """The GPUs of the node and who is on them, at one moment."""

    def __init__(self, node: NodeInfo, device_table: DeviceTable, pods: Iterable[KnownPod], without: str = "") -> None:
        self._node = node
        self._groups: dict[str, int] = {}
        self._taken = {gpu.uuid: _Taken() for gpu in node.inventory.gpus}
        known = {pod.uid: pod for pod in pods if pod.alive}
        for pod_devices in device_table:
            if pod_devices.uid != without:
                self._hold(pod_devices, known.get(pod_devices.uid))
        for uid, pod in known.items():
            if uid != without and device_table.get(uid) is None and pod.allocation is not None:
                for share in pod.allocation.gpus:
                    self._add(share.uuid, share.mib, share.percent, pod.trust_group)

    def choose(self, shape: Shape, trust_group: str, usable: Iterable[str]) -> tuple[str, ...] | None:
        """Return the UUIDs of the GPUs that a pod gets of those that are ``usable``; None where it does not fit."""
        from gputile.core.ledger.node_arrays import NO_GROUP
        from gputile.core.ledger.snapshot import NodeState
        from gputile.core.placement.choose import choose_gpus

        allowed = frozenset(usable)
        state = NodeState(
            self._node, self._node.serving_mode, tuple(self._state(i, allowed) for i in range(len(self._taken)))
        )
        chosen = choose_gpus(state, shape, self._groups.get(trust_group, NO_GROUP))
        return tuple(state.gpu.uuid for state in chosen) if chosen else None

    def pods_on(self, gpu: str) -> int:
        return self._taken[gpu].pods if gpu in self._taken else 0

    def _state(self, position: int, allowed: frozenset[str]) -> "GpuState":
        from gputile.core.ledger.node_arrays import MIXED_GROUPS, NO_GROUP
        from gputile.core.ledger.snapshot import GpuState

        gpu = self._node.inventory.gpus[position]
        taken, group = self._taken[gpu.uuid], NO_GROUP
        if taken.groups:
            group = MIXED_GROUPS if len(taken.groups) > 1 else self._groups[next(iter(taken.groups))]
        if gpu.uuid not in allowed:
            gpu = msgspec.structs.replace(gpu, healthy=False)
        return GpuState(gpu, self._node.gpu_total(position), taken.mib, taken.percent, taken.pods, group)

    def _hold(self, pod_devices: PodDevices, pod: KnownPod | None) -> None:
        """Count a pod's devices, and what else of its booking is still to come on the same GPUs."""
        booked = {share.uuid: share for share in pod.allocation.gpus} if pod and pod.allocation else {}
        if not pod_devices.gpus <= booked.keys():
            booked = {}
        for uuid in sorted(pod_devices.gpus | booked.keys()):
            share = booked.get(uuid)
            mib, percent = pod_devices.mib(uuid), pod_devices.percent(uuid)
            if share is not None:
                mib, percent = max(mib, share.mib), max(percent, share.percent)
            self._add(uuid, mib, percent, pod_devices.trust_group)

    def _add(self, gpu: str, mib: int, percent: int, trust_group: str) -> None:
        taken = self._taken.get(gpu)
        if taken is None:
            return
        self._groups.setdefault(trust_group, len(self._groups) + 1)
        taken.mib, taken.percent, taken.pods = taken.mib + mib, taken.percent + percent, taken.pods + 1
        taken.groups |= {trust_group}


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


def replicas(
    size: int, available: IdsByGpu, must: IdsByGpu, free_capacity: FreeCapacity, usable: Iterable[str]
) -> tuple[str, ...]:
    """Return IDs of replicated GPUs: different GPUs first, the least used of those that are ``usable``."""
    chosen = [device_id for ids in must.values() for device_id in in_order(ids)]
    left = {gpu: in_order(available.get(gpu, frozenset()) - must.get(gpu, frozenset()))[::-1] for gpu in usable}
    load = {gpu: free_capacity.pods_on(gpu) for gpu in left}
    while len(chosen) < size and any(left.values()):
        gpu = min((gpu for gpu in left if left[gpu]), key=load.__getitem__)
        chosen.append(left[gpu].pop())
        load[gpu] += 1
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
    held = _row_of(state, caller)
    in_use = _in_use(state, free, resource, held.uid, caller)
    offered = by_gpu((*kept, *(device_id for device_id in free if device_id not in in_use)))
    return _Choice(state, caller, resource, size, held, offered, by_gpu(kept)).choose()


def _row_of(state: AllocationState, caller: Caller | None) -> PodDevices:
    """Return what the caller's pod holds so far."""
    config, pod = state.node_config, caller.pod if caller is not None else None
    if pod is not None and (held := state.device_table.get(pod.uid)) is not None:
        return held
    key = caller.key if caller is not None else ""
    namespace, _, name = key.partition("/")
    unit = pod.request.unit_mib if pod is not None and pod.request is not None else 0
    group = pod.trust_group if pod is not None else state.trust_group(namespace)
    return PodDevices(
        pod.uid if pod is not None else "",
        namespace,
        name,
        unit or config.effective_mode.unit_mib,
        config.mode.value,
        group,
        0,
        identified=bool(key),
        known=pod is not None,
    )


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

    def __post_init__(self) -> None:
        self.usable = [gpu.uuid for gpu in self.state.node_config.inventory.gpus if gpu.healthy]
        self.pod = self.caller.pod if self.caller else None
        shares = self.pod.booked(self.caller.container) if self.pod and self.caller else ()
        self.booked = booked_gpus(self.state.node_config, (share.uuid for share in shares))

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

    def _ids_of_the_pod(self) -> int:
        """Return how many IDs of a GPU the whole pod needs, where this is the first of its containers; else 0.

        The kubelet gives the IDs of an init container to the containers after it, and fills up what they lack. So a
        GPU that has no IDs for them, since a pod that was deleted by force has them yet, must not get the first one.
        """
        pod = self.pod
        if self.held.gpus or pod is None or pod.request is None:
            return 0
        shape, unit = pod.request.shape, self.held.unit_mib
        if self.resource == GPU_MEMORY:
            return -(-shape.mib // unit) if unit else 0
        return shape.percent

    def _replicas(self) -> tuple[str, ...]:
        rules = rules_of(self.state)
        friendly = [gpu for gpu in self.usable if rules.stranger_on(self.held, gpu) is None]
        if set(self.booked) <= set(friendly):
            ids = spread_evenly(self.size, self.booked, self.available, self.must)
            if ids is not None and self._can_be_served(ids):
                return ids
        return replicas(self.size, self.available, self.must, self._free_capacity(""), friendly)

    def _whole_options(self) -> Iterator[tuple[str, ...]]:
        """Yield the booked GPUs, then the best of those that are free."""
        yield self.booked
        free = [gpu for gpu in self.usable if self.available.get(gpu) and gpu not in self.must]
        kind = RequestKind.TOPOLOGY if self.resource == TOPOLOGY_GPU else RequestKind.WHOLE
        shape = Shape(kind, self.size - len(self.must))
        chosen = self._free_capacity(self.held.uid).choose(shape, "", free) if shape.gpus > 0 else ()
        if chosen is not None:
            yield (*self.must, *chosen)

    def _shared_options(self) -> Iterator[tuple[str, ...]]:
        """Yield the GPUs that the pod is on, the booked ones of the container and the pod, then what fits now.

        GPUs with enough IDs and room for the whole pod come first.
        """
        for least in dict.fromkeys((self._ids_of_the_pod(), 0)):
            for gpus in self._shared_options_with(least):
                if all(self._has(gpu, least) and (not least or self._has_room(gpu)) for gpu in gpus):
                    yield gpus

    def _shared_options_with(self, least: int) -> Iterator[tuple[str, ...]]:
        yield tuple(sorted(self.held.gpus)) or self._near()
        yield self.booked
        if self.pod and self.pod.allocation:
            yield booked_gpus(self.state.node_config, (share.uuid for share in self.pod.allocation.gpus))
        free_capacity = self._free_capacity(self.held.uid)
        for shape in self._shapes():
            each = max(least, -(-self.size // shape.gpus))
            enough = [gpu for gpu in self.usable if self._has(gpu, each)]
            chosen = free_capacity.choose(shape, self.held.trust_group, enough)
            if chosen is not None:
                yield chosen

    def _near(self) -> tuple[str, ...]:
        """Return the GPUs of the last answer, if nobody knows whom that and this are for, and its resource was another.

        The kubelet asks for all resources of a container one after the other.
        """
        last = self.state.device_table.get(self.state.admission.last_uid)
        if self.caller is not None or last is None or last.identified or self.resource in last.ids_by_gpu:
            return ()
        return tuple(sorted(last.gpus))

    def _has(self, gpu: str, ids: int) -> bool:
        return len(self.available.get(gpu, ())) >= ids

    def _has_room(self, gpu: str) -> bool:
        """Return whether a GPU has memory and compute left for the whole pod.

        The kubelet asks for the two one after the other. Where the first has settled the GPU, the second has no choice.
        """
        pod = self.pod
        if pod is None or pod.request is None:
            return True
        mib, percent = rules_of(self.state).left(gpu, pod.uid)
        return mib >= pod.request.shape.mib and percent >= pod.request.shape.percent

    def _shapes(self) -> Iterator[Shape]:
        """Yield what is looked for: room for the whole pod, then for this container alone."""
        pod, gpus = self.pod, 1
        if pod and pod.request:
            yield pod.request.shape
            gpus = pod.request.shape.gpus
        memory, unit = self.resource == GPU_MEMORY, self.held.unit_mib
        mib = self.size * unit // gpus if memory else 0
        percent = 0 if memory else self.size // gpus
        request = self.caller.request if self.caller else None
        if request is not None:
            mib, percent = request.units * unit // gpus, request.percent // gpus
        # A core_mem node serves requests of both; where only one is known, as of a static pod, the least of the other.
        if self.state.node_config.mode is Mode.CORE_MEM:
            percent = max(1, percent)
        yield Shape(RequestKind.SHARED, gpus, mib, percent, self.held.trust_group)

    def _free_capacity(self, without: str) -> FreeCapacity:
        state = self.state
        node = node_info(state.node_config.inventory, state.node_config.mode, state.labels, state.configuration)
        return FreeCapacity(node, state.device_table, state.pods.values(), without)
