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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, ObjectMeta
from gputile.api.well_known import GPU_MEMORY, INVENTORY_ANNOTATION, MIG_PREFIX, MODE_LABEL, TOPOLOGY_GPU, Mode
from gputile.core.devices.inventory import Inventory, encode_inventory
from gputile.core.devices.request import RequestKind, Shape
from gputile.core.ledger.node_info import NodeInfo, node_info_of
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.device_ids import in_order
from gputile.node.agent.device_table import DeviceTable, PodDevices
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import NodeConfig
from gputile.node.agent.rules import SHARED_RESOURCES, rules_of

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
        self._taken[gpu] = replace(
            taken,
            mib=taken.mib + mib,
            percent=taken.percent + percent,
            pods=taken.pods + 1,
            groups=taken.groups | {trust_group},
        )


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


Servable = Callable[[tuple[str, ...]], bool]


@dataclass(frozen=True, slots=True)
class DeviceQuestion:
    """What ``GetPreferredAllocation`` asks: ``size`` IDs of ``available``, with all of ``must``.

    ``pod_devices`` is what the pod has so far; ``caller`` is the container that asks, None where nobody knows. It
    goes ``near`` the GPUs of the last answer then, which may have been its own for another resource.
    """

    pod_devices: PodDevices
    caller: Caller | None
    resource: str
    available: IdsByGpu
    must: IdsByGpu
    size: int
    near: tuple[str, ...] = ()

    @property
    def pod(self) -> KnownPod | None:
        return self.caller.pod if self.caller else None

    @property
    def booked(self) -> tuple[str, ...]:
        shares = self.pod.booked(self.caller.container) if self.pod and self.caller else ()
        return tuple(share.uuid for share in shares)


class PreferredAllocation:
    """One choice of device IDs, on the state of the node at this moment."""

    def __init__(self, state: AllocationState, asked: DeviceQuestion) -> None:
        self._state = state
        self._asked = asked
        self._usable = [gpu.uuid for gpu in state.node_config.inventory.gpus if gpu.healthy]

    def choose(self, servable: Servable) -> tuple[str, ...]:
        """Return the IDs for the container that asks.

        The first set that is ``servable`` is taken. Where none is, the answer is IDs of as few GPUs as possible, and
        the check at ``Allocate`` says what is wrong with them.
        """
        asked = self._asked
        if asked.resource.startswith(MIG_PREFIX):
            return on_some_gpu(asked.size, asked.available, asked.must)
        if self._state.node_config.replicated:
            return self._replicas(servable)
        for gpus in self._shared_options() if asked.resource in SHARED_RESOURCES else self._whole_options():
            ids = spread_evenly(asked.size, gpus, asked.available, asked.must)
            if ids is not None and servable(ids):
                return ids
        usable = {gpu: asked.available[gpu] for gpu in self._usable if gpu in asked.available}
        return on_some_gpu(asked.size, usable, asked.must)

    def _ids_of_the_pod(self) -> int:
        """Return how many IDs of a GPU the whole pod needs, where this is the first of its containers; else 0.

        The kubelet gives the IDs of an init container to the containers after it, and fills up what they lack. So a
        GPU that has no IDs for them, since a pod that was deleted by force has them yet, must not get the first one.
        """
        asked, pod = self._asked, self._asked.pod
        if asked.pod_devices.gpus or pod is None or pod.request is None:
            return 0
        shape, unit = pod.request.shape, asked.pod_devices.unit_mib
        if asked.resource == GPU_MEMORY:
            return -(-shape.mib // unit) if unit else 0
        return shape.percent

    def _replicas(self, servable: Servable) -> tuple[str, ...]:
        asked, node_config, rules = self._asked, self._state.node_config, rules_of(self._state)
        friendly = [gpu for gpu in self._usable if rules.stranger_on(asked.pod_devices, gpu) is None]
        booked = booked_gpus(node_config, asked.booked)
        if set(booked) <= set(friendly):
            ids = spread_evenly(asked.size, booked, asked.available, asked.must)
            if ids is not None and servable(ids):
                return ids
        return replicas(asked.size, asked.available, asked.must, self._free_capacity(""), friendly)

    def _whole_options(self) -> Iterator[tuple[str, ...]]:
        """Yield the booked GPUs, then the best of those that are free."""
        asked = self._asked
        yield booked_gpus(self._state.node_config, asked.booked)
        free = [gpu for gpu in self._usable if asked.available.get(gpu) and gpu not in asked.must]
        kind = RequestKind.TOPOLOGY if asked.resource == TOPOLOGY_GPU else RequestKind.WHOLE
        lacking = asked.size - len(asked.must)
        chosen = (
            self._free_capacity(asked.pod_devices.uid).choose(Shape(kind, lacking), "", free) if lacking > 0 else ()
        )
        if chosen is not None:
            yield (*asked.must, *chosen)

    def _shared_options(self) -> Iterator[tuple[str, ...]]:
        """Yield the GPUs that the pod is on, the booked ones of the container and the pod, then what fits now.

        GPUs with enough IDs and room for the whole pod come first.
        """
        for least in dict.fromkeys((self._ids_of_the_pod(), 0)):
            for gpus in self._shared_options_with(least):
                if all(self._has(gpu, least) and (not least or self._has_room(gpu)) for gpu in gpus):
                    yield gpus

    def _shared_options_with(self, least: int) -> Iterator[tuple[str, ...]]:
        asked = self._asked
        yield tuple(sorted(asked.pod_devices.gpus)) or asked.near
        yield booked_gpus(self._state.node_config, asked.booked)
        if asked.pod and asked.pod.allocation:
            yield booked_gpus(self._state.node_config, (share.uuid for share in asked.pod.allocation.gpus))
        free_capacity = self._free_capacity(asked.pod_devices.uid)
        for shape in self._shapes():
            each = max(least, -(-asked.size // shape.gpus))
            chosen = free_capacity.choose(
                shape, asked.pod_devices.trust_group, [gpu for gpu in self._usable if self._has(gpu, each)]
            )
            if chosen is not None:
                yield chosen

    def _has(self, gpu: str, ids: int) -> bool:
        return len(self._asked.available.get(gpu, ())) >= ids

    def _has_room(self, gpu: str) -> bool:
        """Return whether a GPU has memory and compute left for the whole pod.

        The kubelet asks for the two one after the other. Where the first has settled the GPU, the second has no choice.
        """
        pod = self._asked.pod
        if pod is None or pod.request is None:
            return True
        mib, percent = rules_of(self._state).left(gpu, pod.uid)
        return mib >= pod.request.shape.mib and percent >= pod.request.shape.percent

    def _shapes(self) -> Iterator[Shape]:
        """Yield what is looked for: room for the whole pod, then for this container alone."""
        asked, pod, gpus = self._asked, self._asked.pod, 1
        if pod and pod.request:
            yield pod.request.shape
            gpus = pod.request.shape.gpus
        memory, unit = asked.resource == GPU_MEMORY, asked.pod_devices.unit_mib
        mib = asked.size * unit // gpus if memory else 0
        percent = 0 if memory else asked.size // gpus
        request = asked.caller.request if asked.caller else None
        if request is not None:
            mib, percent = request.units * unit // gpus, request.percent // gpus
        # A core_mem node serves requests of both; where only one is known, as of a static pod, the least of the other.
        if self._state.node_config.mode is Mode.CORE_MEM:
            percent = max(1, percent)
        yield Shape(RequestKind.SHARED, gpus, mib, percent, asked.pod_devices.trust_group)

    def _free_capacity(self, without: str) -> FreeCapacity:
        state = self._state
        node = node_info(state.node_config.inventory, state.node_config.mode, state.labels, state.configuration)
        return FreeCapacity(node, state.device_table, state.pods.values(), without)
