"""Identifies the container for which the kubelet calls, and builds the response to ``Allocate``.

The calls of the device plugin API do not name the container. The kubelet admits one pod at a time, and ``List`` shows
that pod with containers that have no devices yet. So the pod is bound here, requests GPUs, and has none in the list.
The container is the next one in the order of admission that requests exactly this number of IDs of the resource and
has none in the kubelet's checkpoint. Containers that have not started yet take precedence over those that have: a
kubelet that has forgotten the devices of a running container requests no new ones for it (``devicesToAllocate`` in
pkg/kubelet/cm/devicemanager). If all containers have started, the caller is in the youngest listed pod: a kubelet that
has just started admits pods by age, and does not list those that it has yet to admit. The caller only determines the
preferred GPU and the environment: ``PreStartContainer`` relies on the kubelet's checkpoint.

If ``Allocate`` is refused, the pod fails for good, and its controller creates the next one at once. So ``Allocate``
checks only the IDs, and is refused only if they can never be served: if a GPU does not exist, or there are too many.
Conditions that may change are checked at ``PreStartContainer``, which the kubelet retries.

The GPUs in a response are always those of the kubelet's device IDs, so that a container sees exactly the GPUs that the
kubelet has assigned. Both resources of a core_mem container get the same response, since the kubelet merges the two. A
client of NVIDIA's MPS also gets the pipe directory of its control daemon, and its limits (NVIDIA's "Multi-Process
Service", chapters "Environment Variables" and "Device Memory Limit").
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

import msgspec

from gputile.api.well_known import Mode
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.device_table import CONTAINER_DIRECTORY, LIMITS_FILE, ListedPod, Listing
from gputile.node.agent.holdings import answer, derive
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import NodeConfig
from gputile.node.agent.rules import AllocationConflict, Occupied, rules_of

Written = Set[tuple[str, str, str]]

PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"
CONTAINER_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - CUDA's default
LIMIT_ENV: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_ENV: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # NVIDIA container toolkit
LIMITS_ENV = "GPUTILE_LIMITS"
# gpushare's device plugin sets these; existing programs read them (B9).
_CONTAINER, _POD, _DEVICE = "ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_POD", "ALIYUN_COM_GPU_MEM_DEV"
_INDEX, _UNIT = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_UNIT"


def callers(state: AllocationState, listing: Listing | None, resource: str, size: int) -> list[Caller]:
    """Return the possible callers for ``size`` IDs of ``resource``, the likeliest first; none without a listing."""
    written = {(entry.uid, entry.container, entry.resource) for entry in state.written}
    found: list[tuple[tuple[object, ...], Caller]] = []
    again: list[tuple[tuple[str, str], Caller]] = []
    for key, listed in (listing or {}).items():
        pod = state.pods.get(key)
        if pod is None or not pod.alive or (pod.request is None and pod.problem is not None):
            if bare := _first_bare(listed, resource):
                found.append(((2, "", key), Caller(key, bare, pod if pod is not None and pod.alive else None)))
        elif (caller := _next(state, listed, pod, written, resource, size)) is not None:
            created, pending = pod.pod.metadata.creation_timestamp or "", pod.pod.status.phase in ("", "Pending")
            if caller.sure:
                found.append(((0 if pending else 1, pod.uid != state.admission.last_uid, created, key), caller))
            else:
                again.append(((created, key), caller))
    found.sort(key=lambda pair: pair[0])
    again.sort(key=lambda pair: pair[0], reverse=True)
    return [caller for _, caller in (*found, *again)]


def unclear(state: AllocationState, listing: Listing | None, resource: str, size: int) -> list[str]:
    """Return the keys of the pods to read from the API server to identify the caller; none if it is certain."""
    found = callers(state, listing, resource, size)
    if sum(caller.sure for caller in found) == 1:
        return []
    unlike = [
        key
        for key, listed in (listing or {}).items()
        if (pod := state.pods.get(key)) is not None and pod.alive and _unlike(listed, pod, resource)
    ]
    return list(dict.fromkeys([*(caller.key for caller in found if not caller.sure), *unlike]))


def _next(
    state: AllocationState, listed: ListedPod, pod: KnownPod, written: Written, resource: str, size: int
) -> Caller | None:
    """Return the next container of ``pod``; containers before one with devices have been admitted already."""
    containers = pod.request.containers if pod.request is not None else ()
    reached = max((place for place, each in enumerate(containers) if listed.containers.get(each.name)), default=0)
    again = None
    for container in containers[reached:]:
        had = (pod.kubelet_uid, container.name, resource) in written or listed.ids(container.name, resource)
        if had or pod.demand(container, resource) != size:
            continue
        if not state.device_table.runs(pod.uid, container.name):
            return Caller(listed.key, container.name, pod, container, sure=True)
        again = again or Caller(listed.key, container.name, pod, container)
    return again


def _first_bare(listed: ListedPod, resource: str) -> str:
    """Return the first container after the last one with IDs; earlier ones have been admitted already."""
    names = list(listed.containers)
    reached = max((place for place, name in enumerate(names, 1) if listed.ids(name, resource)), default=0)
    return next(iter(names[reached:]), "")


def _unlike(listed: ListedPod, pod: KnownPod, resource: str) -> bool:
    """Return whether the listed pod may be a later pod of the same name than the cached one.

    It may be if it has a container without devices, and the cached pod requests no GPUs, lacks this container, or
    requests the resource for it.
    """
    bare = [name for name, resources in listed.containers.items() if not resources]
    if pod.request is None:
        return bool(bare)
    names = {container.name for container in (*pod.pod.spec.init_containers, *pod.pod.spec.containers)}
    return any(
        name not in names
        or ((container := pod.container_request(name)) is not None and pod.demand(container, resource) > 0)
        for name in bare
    )


@dataclass(frozen=True, slots=True)
class AllocateAnswer:
    """The response to ``Allocate``. ``directory`` is the name of the allocation directory on the host."""

    environment: Mapping[str, str]
    directory: str
    uuids: tuple[str, ...]


def allocate(
    state: AllocationState, caller: Caller | None, resource: str, ids: tuple[str, ...], now_ns: int
) -> AllocateAnswer:
    """Record the allocation of ``ids`` to the container that is being admitted; return the response.

    Raises:
        AllocationConflict: the IDs can never be served.
    """
    state.admission.expected = None
    handed_on = {
        device_id
        for held in state.device_table.holders(resource, ids)
        for each in held.devices
        if each.resource == resource and each.phase is Phase.INIT
        for device_id in each.ids
    }
    before = state.records.copy(), set(state.admission.answered)
    directory = answer(state, caller, resource, ids, now_ns)
    row, devices = next(
        (held, each)
        for held in state.device_table
        for each in held.devices
        if (each.directory, each.resource) == (directory, resource)
    )
    pod = caller.pod if caller is not None else None
    gpus = pod.request.shape.gpus if pod is not None and pod.request is not None else 1
    try:
        rules_of(state).check(row, devices, gpus, reused=bool(state.unread) or handed_on.issuperset(ids))
    except Occupied:
        pass
    except AllocationConflict:
        state.records, state.admission.answered = before
        derive(state, now_ns)
        raise
    state.admission.last_uid = row.uid
    on = state.gpus(row, devices.container, pod)
    shares = state.shares(row, devices.container)
    uuids = state.node_config.visible(ids, on)
    mib = row.mib(min(on, default=""))
    if pod is not None and pod.request is not None:
        mib = pod.request.shape.mib
    threads = pod.mps_threads if pod is not None else 0
    variables = environment(state.node_config, uuids, shares, row.unit_mib, mib, threads)
    return AllocateAnswer(variables, directory, uuids)


def record_mounts(state: AllocationState, directory: str, mounts: tuple[tuple[str, str], ...]) -> None:
    state.records[directory] = msgspec.structs.replace(state.records[directory], mounts=mounts)


def environment(
    node_config: NodeConfig,
    uuids: tuple[str, ...],
    shares: tuple[GpuShare, ...],
    unit_mib: int,
    pod_mib: int,
    threads: int = 0,
) -> dict[str, str]:
    """Return the environment of a container with ``shares`` of GPUs; ``pod_mib`` is its pod's memory on each GPU.

    ``threads`` is the percentage of a GPU's threads that it requests in mode mps, 0 if it requests none.
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
        if mib := sum(share.mib for share in shares):  # 0 if an unknown container gets compute only
            result |= {_CONTAINER: str(mib // unit_mib), _POD: str(pod_mib * len(shares) // unit_mib)}
    if node_config.mode is Mode.MPS:
        # CUDA numbers the visible devices from 0 (MPS documentation, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT).
        limits = (f"{position}={share.mib}M" for position, share in enumerate(shares))
        result[LIMIT_ENV] = ",".join(limits)
        result[PIPE_ENV] = CONTAINER_PIPES
        if threads:
            result[THREADS_ENV] = str(threads)
    return result
