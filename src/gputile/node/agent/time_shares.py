"""Computes each container's share of GPU time, from devices, pods, labels and configuration.

``arbiter.timeslice_scheduler`` enforces the shares.

While no arbiter runs, each container limits itself to a fallback share, which depends on the
weights of the containers on its GPU. The weight of an init container that is not a sidecar does not
count for other containers. Such a container runs only for a short time, and ends before the next
containers start.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from gputile.api.config.v1alpha1 import GpuTime
from gputile.api.quantity import parse_weight
from gputile.api.well_known import (
    TIME_POLICY_LABEL,
    TIME_WEIGHT_ANNOTATION,
    GpuTimePolicy,
    GpuTimePolicyError,
    Mode,
    parse_policy,
)
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import PodDevices
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import LIBRARY_MODES
from gputile.node.arbiter.accounts import WHOLE, Share
from gputile.node.arbiter.messages import Assignment
from gputile.node.native_layouts import SHARE_END, SHARE_FIRST_LINE, SHARE_GPU, SHARE_QUANTUM


def share_of(
    policy: GpuTimePolicy, percent: int, weight: int, priority: int, most_containers: int
) -> Share:
    """Return a container's share under ``policy``, if ``most_containers`` may be on a GPU.

    ``percent`` is the container's part of the GPU's compute. For a container that requests no
    compute, it is the part of the memory.
    """
    part = WHOLE // 100 * min(100, percent)
    match policy:
        case GpuTimePolicy.AVERAGE:
            return Share(1, WHOLE // most_containers, WHOLE // most_containers)
        case GpuTimePolicy.WEIGHTED:
            return Share(weight, priority=priority)
        case GpuTimePolicy.FIXED:
            return Share(percent, part, part)
        case GpuTimePolicy.WEAK:
            return Share(weight, part, WHOLE, priority)
        case GpuTimePolicy.PREEMPTIVE | GpuTimePolicy.NATIVE:
            return Share()


def fallback(policy: GpuTimePolicy, share: Share, weights: int) -> int:
    """Return a container's limit while no arbiter runs, in millionths of the GPU's time.

    ``weights`` is the sum of the weights of all containers on the GPU.
    """
    if policy is GpuTimePolicy.NATIVE:
        return WHOLE
    if share.guarantee:
        return share.guarantee
    return max(1, min(share.ceiling, WHOLE * share.weight // max(1, weights)))


MOST_PRIORITY: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TimeShares:
    """The arbiter's assignment, and the share files of the allocations, by directory name.

    A container obeys its share file while no arbiter runs. ``guaranteed`` contains the same parts
    of GPU time as the files, by directory name and GPU UUID. ``SHARE_WHOLE`` stands for 100 %.
    """

    assignment: Assignment
    files: Mapping[str, bytes]
    guaranteed: Mapping[str, Mapping[str, int]]


def policy_of(mode: Mode, labels: Mapping[str, str], configured: GpuTime) -> GpuTimePolicy:
    """Return the policy in force. An invalid label is ignored."""
    try:
        return parse_policy(labels[TIME_POLICY_LABEL])
    except (KeyError, GpuTimePolicyError):
        return GpuTimePolicy.FIXED if mode is Mode.CORE_MEM else parse_policy(configured.policy)


def time_shares(
    allocation_state: AllocationState, directory: str, on: Set[str] | None = None
) -> TimeShares:
    """Return the time shares of the containers on the node.

    With ``on``, only pods on at least one of these GPUs are included. ``directory`` is the parent
    of the allocation directories.
    """
    node_config, configuration = allocation_state.node_config, allocation_state.configuration
    policy = policy_of(node_config.mode, allocation_state.labels, configuration.gpu_time)
    shares: dict[str, dict[str, Share]] = {}
    weights = Counter[str]()  # the total weight on each GPU, without init containers
    short: set[str] = set()
    for pod_devices in allocation_state.device_table if node_config.mode in LIBRARY_MODES else ():
        if on is not None and on.isdisjoint(pod_devices.gpus):
            continue
        short |= {each.directory for each in pod_devices.devices if each.phase is Phase.INIT}
        for name, of_container in _shares(allocation_state, pod_devices, policy):
            shares[name] = of_container
            if name not in short:
                weights.update({uuid: share.weight for uuid, share in shares[name].items()})
    quantum = configuration.gpu_time.quantum_ms
    guaranteed = {
        name: {
            uuid: fallback(policy, share, weights[uuid] + (share.weight if name in short else 0))
            for uuid, share in gpus.items()
        }
        for name, gpus in shares.items()
    }
    files = {name: _file(parts, quantum) for name, parts in guaranteed.items()}
    containers = (
        {f"{directory}/{name}": gpus for name, gpus in shares.items()}
        if policy is not GpuTimePolicy.NATIVE
        else {}
    )
    return TimeShares(
        Assignment(containers, quantum, configuration.gpu_time.longest_wait_ms), files, guaranteed
    )


def _shares(
    allocation_state: AllocationState, pod_devices: PodDevices, policy: GpuTimePolicy
) -> Iterator[tuple[str, dict[str, Share]]]:
    """Yield the allocation directory of each container, and the container's shares by GPU UUID."""
    pod, configuration = allocation_state.pod_of(pod_devices), allocation_state.configuration
    asked = (pod.pod.spec.priority or 0) if pod is not None else 0
    priority = max(-MOST_PRIORITY, min(MOST_PRIORITY, asked))
    weight = min(configuration.gpu_time.most_weight(pod_devices.namespace), _weight(pod))
    for directory, container in {
        each.directory: each.container for each in pod_devices.devices
    }.items():
        shares = {}
        for held in allocation_state.shares(pod_devices, container):
            gpu = allocation_state.node_config.gpu(held.uuid)
            memory = 100 * held.mib // gpu.mib if gpu is not None and gpu.mib else 0
            percent = held.percent or memory or 1
            shares[held.uuid] = share_of(
                policy, percent, weight, priority, configuration.max_pods_per_gpu
            )
        if directory and shares:
            yield directory, shares


def _weight(pod: KnownPod | None) -> int:
    """Return the weight in the pod's annotation, or 1 without a valid annotation."""
    annotations = pod.pod.metadata.annotations if pod is not None else {}
    try:
        return parse_weight(annotations[TIME_WEIGHT_ANNOTATION])
    except (KeyError, ValueError):
        return 1


def _file(shares: Mapping[str, int], quantum_ms: int) -> bytes:
    """Return the content of a share file (docs/reference/arbiter-protocol.md)."""
    lines = [f"{SHARE_GPU} {uuid} {share}" for uuid, share in shares.items()]
    first = [SHARE_FIRST_LINE, f"{SHARE_QUANTUM} {quantum_ms * 1000}"]
    return "\n".join([*first, *lines, SHARE_END, ""]).encode()
