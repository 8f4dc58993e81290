"""Chooses a container's preferred GPUs, and the IDs and environment of the ``Allocate`` response.

``callers`` finds the pod that a call is for, and ``handler`` passes the result to this module.
``container_start`` adds the mounts and CDI devices to the response.

The agent prefers the GPUs that the pod already has, then its booked GPUs, and then GPUs with room.
A booking can be out of date, because the GPU has failed or the kubelet has allocated it to another
pod. A static pod, or a pod whose ``nodeName`` was set by hand, has no booking. Such a pod gets the
fullest GPUs with enough room, and the reconciler writes its annotation later. The kubelet adds IDs
of any GPU to a response with too few IDs. So ``preferred`` returns the full number of IDs on the
right number of GPUs if possible.

A pod whose ``Allocate`` is refused fails permanently, and its controller creates another pod. So
``Allocate`` refuses only IDs that can never be served: IDs of a missing GPU, or of too many GPUs.
``PreStartContainer``, which the kubelet retries, checks all conditions that may change.

The response always names the GPUs of the kubelet's device IDs, so that a container sees exactly
these GPUs. In mode core_mem, a container requests memory and compute. Both resources get the same
response, because the kubelet merges the two. NVIDIA's "Multi-Process Service" describes the
environment of an MPS client (chapters "Environment Variables" and "Device Memory Limit").
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gputile.api.well_known import GPU_MEMORY, MIG_PREFIX, Mode
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.inventory import Gpu
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.device_table import (
    CONTAINER_DIRECTORY,
    LIMITS_FILE,
    ContainerDevices,
    DeviceTable,
    Limits,
    Mounts,
    PodDevices,
    by_gpu,
    in_order,
    with_shares,
)
from gputile.node.agent.holdings import answer
from gputile.node.agent.node_config import NodeConfig
from gputile.node.agent.rules import (
    SHARED_RESOURCES,
    AllocationConflict,
    AllocationRules,
    IdsByGpu,
    Occupied,
    rules_of,
)

PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"
CONTAINER_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - CUDA's default
LIMIT_ENV: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_ENV: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # NVIDIA container toolkit
LIMITS_ENV = "GPUTILE_LIMITS"
# gpushare's device plugin sets these variables, which existing programs read (B9).
_CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
_POD = "ALIYUN_COM_GPU_MEM_POD"
_DEVICE = "ALIYUN_COM_GPU_MEM_DEV"
_INDEX, _UNIT = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_UNIT"


def preferred(
    state: AllocationState,
    caller: Caller,
    resource: str,
    available: Iterable[str],
    must: Iterable[str],
    size: int,
) -> tuple[str, ...]:
    """Return ``size`` of the ``available`` IDs for the kubelet to allocate, among them ``must``.

    The IDs are the best choice that can be served. If no choice can be served, the IDs are on as
    few GPUs as possible, and ``Allocate`` reports the problem.
    """
    kept = frozenset(must)
    free = tuple(device_id for device_id in available if device_id not in kept)
    held = _row_of(state, caller)
    in_use = _in_use(state, free, resource, held.uid, caller)
    offered = by_gpu((*kept, *(device_id for device_id in free if device_id not in in_use)))
    choice = _Choice(state, caller, resource, size, held, offered, by_gpu(kept))
    for gpus in choice.options() if not resource.startswith(MIG_PREFIX) else ():
        ids = spread_evenly(resource, size, gpus, offered, choice.must)
        with contextlib.suppress(AllocationConflict):
            if ids is not None:
                devices = ContainerDevices(caller.container, caller.phase, resource, ids)
                _check(state, caller, held.replaced(devices), devices)
                return ids
    unhealthy = {gpu.uuid for gpu in state.node_config.inventory.gpus if not gpu.healthy}
    usable = {gpu: ids for gpu, ids in offered.items() if gpu not in unhealthy}
    return on_some_gpu(size, usable, choice.must)


def _in_use(
    state: AllocationState, ids: Iterable[str], resource: str, uid: str, caller: Caller
) -> set[str]:
    """Return the IDs that the container must not use, even if the kubelet regards them as free.

    An init container may use the IDs of the pod's other containers. These containers inherit the
    IDs of the init container, which does not run again while they run.
    """
    init = caller.phase is Phase.INIT
    table = state.device_table
    return {
        device_id
        for held, each in table.holders(resource, ids)
        if held.uid != uid
        or (
            not init
            and each.container != caller.container
            and each.phase is not Phase.INIT
            and each.directory in table.started
        )
        for device_id in each.ids
    }


def spread_evenly(
    resource: str, size: int, gpus: Sequence[str], available: IdsByGpu, must: IdsByGpu
) -> tuple[str, ...] | None:
    """Return ``size`` IDs that include ``must``, with the same number from each of ``gpus``.

    The result is None if this is impossible. ``available`` includes ``must``. For a resource of
    shared GPUs, only the IDs that are not in ``must`` are spread evenly. The kubelet hands the IDs
    ``must`` of an init container on to later containers in any order, and all containers together
    have the same number of IDs on each GPU.
    """
    if not gpus or not must.keys() <= set(gpus):
        return None
    of_init = sum(map(len, must.values())) if resource in SHARED_RESOURCES else 0
    each, rest = divmod(size - of_init, len(gpus))
    if rest:
        return None
    chosen = []
    for gpu in gpus:
        kept = must.get(gpu, frozenset())
        more = each if of_init else max(0, each - len(kept))
        others = in_order(available.get(gpu, frozenset()) - kept)[:more]
        if len(others) != more or (not of_init and len(kept) > each):
            return None
        chosen += [*in_order(kept), *others]
    return tuple(chosen)


def on_some_gpu(size: int, available: IdsByGpu, must: IdsByGpu) -> tuple[str, ...]:
    """Return up to ``size`` IDs on as few GPUs as possible, beginning with all of ``must``."""
    chosen = [device_id for ids in must.values() for device_id in in_order(ids)]
    for gpu in sorted(available, key=lambda gpu: (gpu not in must, -len(available[gpu]))):
        chosen += in_order(available[gpu] - must.get(gpu, frozenset()))[: size - len(chosen)]
        if len(chosen) >= size:
            break
    return tuple(chosen)


def _row_of(state: AllocationState, caller: Caller) -> PodDevices:
    """Return the row of the caller's pod in the device table, or a new row without devices."""
    before = state.device_table.get(caller.uid)
    return before or state.new_row(caller.uid, caller.key, caller.pod)


def _check(
    state: AllocationState, caller: Caller, row: PodDevices, devices: ContainerDevices
) -> None:
    pod = caller.pod
    gpus = pod.request.shape.gpus if pod is not None and pod.request is not None else 1
    if state.unread or _inherits(state, row, devices, gpus):
        gpus = 0
    rules_of(state).check(row, devices, gpus)


def _inherits(
    state: AllocationState, row: PodDevices, devices: ContainerDevices, gpus: int
) -> bool:
    """Return whether the GPUs result from IDs that the kubelet handed on from an init container.

    The kubelet hands such IDs on in any order. If the container asks for one GPU, additional IDs
    must be on the GPU of these IDs. So the result is then True only if all IDs were handed on.
    """

    def handed_on(own: ContainerDevices) -> set[str]:
        holders = state.device_table.holders(own.resource, own.ids)
        return {i for _, init in holders if init.phase is Phase.INIT for i in init.ids}

    if gpus <= 1:
        return handed_on(devices).issuperset(devices.ids)
    own = (each for each in row.devices if each.container == devices.container)
    return any(not handed_on(each).isdisjoint(each.ids) for each in own)


@dataclass
class _Choice:
    """The choice of device IDs for one call of ``GetPreferredAllocation``.

    ``held`` is the pod's current row in the device table. The IDs are for the container ``caller``.
    """

    state: AllocationState
    caller: Caller
    resource: str
    size: int
    held: PodDevices
    available: IdsByGpu
    must: IdsByGpu

    def options(self) -> Iterator[tuple[str, ...]]:
        """Yield sets of GPUs: the pod's GPUs, its booked GPUs, and then GPUs with enough room.

        The first call for a pod prefers GPUs with enough IDs and room for the whole pod. For later
        containers, the kubelet reuses the IDs of an init container, and adds IDs if necessary.
        """
        pod, rules = self.caller.pod, rules_of(self.state)
        request = pod.request if pod else None
        of_container = pod.booked(self.caller.container) if pod else ()
        of_pod = pod.allocation.gpus if pod and pod.allocation else ()
        known = [tuple({share.uuid: 0 for share in shares}) for shares in (of_container, of_pod)]
        if self.resource not in SHARED_RESOURCES:
            yield from known
            yield from self._fitting(self.size, 1, 0, 0)
            return
        known.insert(0, tuple(sorted(self.held.gpus)) or self._near())
        count, unit = request.shape.gpus if request is not None else 1, self.held.unit_mib
        memory = self.resource == GPU_MEMORY
        if request is not None and not self.held.gpus:
            mib, percent = request.shape.mib, request.shape.percent
            ids = -(-mib // unit) if memory else percent
            gpus = self.state.node_config.inventory.gpus
            roomy = {gpu.uuid for gpu in gpus if self._fits(rules, gpu, ids, mib, percent)}
            yield from (uuids for uuids in known if roomy.issuperset(uuids))
            yield from self._fitting(count, ids, mib, percent)
        ids = self.size // count
        yield from known
        yield from self._fitting(count, ids, ids * unit if memory else 0, 0 if memory else ids)

    def _near(self) -> tuple[str, ...]:
        """Return the GPUs that an unknown pod probably has already.

        These are the GPUs of the last Allocate call, if that call was for an unknown pod and a
        different resource. The kubelet allocates a container's resources one after the other.
        """
        last = self.state.device_table.get(self.state.last_uid)
        if self.caller.key or last is None or last.identified or self.resource in last.ids_by_gpu:
            return ()
        return tuple(sorted(last.gpus))

    def _fitting(self, count: int, ids: int, mib: int, percent: int) -> Iterator[tuple[str, ...]]:
        """Yield two sets of the ``count`` fullest GPUs with enough IDs, memory and compute.

        With time-slicing, these are the emptiest GPUs. The first set leaves room for booked pods
        that are not admitted yet. The second set ignores these pods, so that the caller does not
        fail or wait because of them.
        """
        state, uid = self.state, self.held.uid
        waiting = (
            with_shares(state.new_row(pod.uid, pod.key, pod), pod.allocation.gpus)
            for pod in state.pods.values()
            if pod.alive
            and pod.uid != uid
            and pod.allocation is not None
            and state.device_table.get(pod.uid) is None
        )
        for rules in (
            rules_of(state, DeviceTable((*state.device_table, *waiting))),
            rules_of(state),
        ):
            order = {
                gpu.uuid: len(list(rules.device_table.on(gpu.uuid, uid)))
                if state.node_config.replicated
                else rules.left(gpu.uuid, uid)[0]
                for gpu in state.node_config.inventory.gpus
                if gpu.healthy
                and gpu.uuid not in self.must
                and self._fits(rules, gpu, ids, mib, percent)
            }
            yield (*self.must, *sorted(order, key=order.__getitem__))[:count]

    def _fits(self, rules: AllocationRules, gpu: Gpu, ids: int, mib: int, percent: int) -> bool:
        wanted = with_shares(self.held, (GpuShare(gpu.uuid, gpu.index, mib, percent),))
        try:
            rules.check_others(wanted)
        except Occupied:
            return False
        return len(self.available.get(gpu.uuid, ())) >= ids


@dataclass(frozen=True, slots=True)
class AllocateAnswer:
    """The response to ``Allocate``. ``directory`` is the name of the allocation directory."""

    environment: Mapping[str, str]
    directory: str
    uuids: tuple[str, ...]


def allocate(
    state: AllocationState, caller: Caller, resource: str, ids: tuple[str, ...], now_ns: int
) -> AllocateAnswer:
    """Record the allocation of ``ids`` to the caller, and return the response.

    Raises AllocationConflict if the IDs can never be served.
    """
    state.expected_call = None
    pod = caller.pod
    devices = ContainerDevices(caller.container, caller.phase, resource, ids)
    row = _row_of(state, caller).replaced(devices)
    with contextlib.suppress(Occupied):
        _check(state, caller, row, devices)
    directory = answer(state, caller, resource, ids, now_ns)
    state.last_uid = caller.uid or directory
    on = state.gpus(row, caller.container, pod)
    shares = state.shares(row, caller.container)
    uuids = state.node_config.visible(ids, on)
    mib = row.mib(min(on, default=""))
    if pod is not None and pod.request is not None:
        mib = pod.units_per_gpu * row.unit_mib
    threads = pod.mps_threads if pod is not None else 0
    variables = environment(state.node_config, uuids, shares, row.unit_mib, mib, threads)
    return AllocateAnswer(variables, directory, uuids)


def record_mounts(state: AllocationState, directory: str, mounts: Mounts) -> Limits:
    state.records[directory] = record = msgspec.structs.replace(
        state.records[directory], mounts=mounts
    )
    return record


def environment(
    node_config: NodeConfig,
    uuids: tuple[str, ...],
    shares: tuple[GpuShare, ...],
    unit_mib: int,
    pod_mib: int,
    threads: int = 0,
) -> dict[str, str]:
    """Return the environment of a container with ``shares`` of GPUs.

    ``pod_mib`` is the memory of the whole pod on each GPU. ``threads`` is the percentage of a GPU's
    threads that the pod requests in mode mps, or 0 if it requests none.
    """
    result = {VISIBLE_DEVICES: ",".join(uuids)}
    if not node_config.mode.shared:
        return result
    result[LIMITS_ENV] = f"{CONTAINER_DIRECTORY}/{LIMITS_FILE}"
    first = node_config.gpu(shares[0].uuid) if shares else None
    if first is not None:
        result |= {
            _DEVICE: str(first.mib // unit_mib),
            _INDEX: ",".join(str(share.index) for share in shares),
            _UNIT: f"{unit_mib}MiB",
        }
        if mib := sum(share.mib for share in shares):  # 0 while only its compute is known
            result |= {
                _CONTAINER: str(mib // unit_mib),
                _POD: str(pod_mib * len(shares) // unit_mib),
            }
    if node_config.mode is Mode.MPS:
        # CUDA numbers the visible devices from 0 (MPS documentation,
        # CUDA_MPS_PINNED_DEVICE_MEM_LIMIT).
        limits = (f"{position}={share.mib}M" for position, share in enumerate(shares))
        result[LIMIT_ENV] = ",".join(limits)
        result[PIPE_ENV] = CONTAINER_PIPES
        if threads:
            result[THREADS_ENV] = str(threads)
    return result
