"""Nodes and pods as the records of the page, from the ledger and the objects."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, NodeCondition, Pod
from gputile.api.well_known import AGENT_SILENT, CONDITION_PREFIX
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.request import RequestError, parse_request
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import NodeInfo, ServingMode
from gputile.tools.simulator.explanation import asks, waiting_for
from gputile.tools.simulator.workload_outcomes import workload_of
from gputile.tools.web.records import GpuTile, NodeTile, PendingPod, PodTile, TileShare

_SERVES: Final[Mapping[int, str]] = {
    ServingMode.WHOLE: "gpus",
    ServingMode.TOPOLOGY: "gpus",
    ServingMode.SLICED: "gpus",
    ServingMode.OTHER_PLUGIN: "gpus",
    ServingMode.MEMORY: "memory",
    ServingMode.MEMORY_AND_CORE: "memory",
}


def node_tile(ledger: Ledger, row: int, node: Node | None, pods: Mapping[str, Pod]) -> NodeTile | None:
    """Return the record of the node in a row of the ledger, None where it has nothing to do with GPUs.

    ``node`` is its object, ``pods`` are the cluster's pods by their UIDs.
    """
    info = ledger.node_info(row)
    if info is None:
        return None
    bookings = sorted(ledger.on_node(info.name), key=lambda each: (each.namespace, each.name, each.uid))
    problems = _problems(ledger, info, node)
    if not info.inventory.gpus and not bookings and not problems:
        return None
    arrays = ledger.node_arrays
    serves = _SERVES.get(int(arrays.serving_mode[row]), "")
    index_of = {gpu.uuid: gpu.index for gpu in info.inventory.gpus}
    gpus = tuple(
        GpuTile(
            index=gpu.index,
            total=int(arrays.total[row, i]),
            model=gpu.model,
            booked=int(arrays.used[row, i]),
            percent=int(arrays.percent[row, i]),
            pods=int(arrays.pods[row, i]),
            healthy=gpu.healthy,
        )
        for i, gpu in enumerate(info.inventory.gpus)
    )
    total_of = {gpu.index: gpu.total for gpu in gpus}
    return NodeTile(
        name=info.name,
        mode=info.mode.value if info.mode else "",
        unit=info.unit_mib,
        serves=serves,
        gpus=gpus,
        pods=tuple(_pod_tile(each, index_of, total_of, info, pods.get(each.uid)) for each in bookings),
        problems=problems,
        taints=_taints(node),
        silent=_condition(node, AGENT_SILENT) is not None,
        cordoned=node is not None and node.spec.unschedulable,
        replicas=info.replicas,
    )


def pending_pod(pod: Pod, configuration: Configuration) -> PendingPod | None:
    """Return the record of a pod that asks for GPUs and is on no node yet; None for any other."""
    if pod.spec.node_name or pod.finished:
        return None
    waits = waiting_for(pod)
    try:
        request = parse_request(pod, configuration.unit_mib, configuration.trust_group)
    except RequestError as error:
        text = f"can never be placed: {error}"
    else:
        if request is None:
            return None
        text = asks(request)
    gang = gang_of(pod)
    meta = pod.metadata
    return PendingPod(meta.namespace, meta.name, text, created_s(pod), gang.name if gang is not None else "", waits)


def created_s(pod: Pod | None) -> int:
    """Return when a pod was created, Unix time in seconds; 0 where that is not known."""
    text = pod.metadata.creation_timestamp if pod is not None else None
    if not text:
        return 0
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError, OSError):
        return 0


def _pod_tile(
    booking: Booking, index_of: Mapping[str, int], total_of: Mapping[int, int], info: NodeInfo, pod: Pod | None
) -> PodTile:
    missing = next((share.uuid for share in booking.gpus if share.uuid not in index_of), None)
    shares = []
    for share in booking.gpus:
        if share.uuid in index_of:
            index = index_of[share.uuid]
            mib, percent = booking.takes(share, total_of[index], info.replicas)
            shares.append(TileShare(index, mib, percent))
    return PodTile(
        namespace=booking.namespace,
        name=booking.name,
        shares=tuple(shares),
        workload=_workload(pod),
        whole=booking.whole,
        reserved=booking.reserved,
        created=created_s(pod),
        asked=0 if shares else booking.asked_mib,
        problem=f"it holds GPU {missing}, which the node does not have" if missing else booking.problem,
    )


def _workload(pod: Pod | None) -> str:
    if pod is None:
        return ""
    kind, _, name = workload_of(pod)
    return "" if kind == "Pod" else name


def _problems(ledger: Ledger, info: NodeInfo, node: Node | None) -> tuple[str, ...]:
    """Return what the node says of itself that is wrong, and why it takes no pods."""
    found = [info.problem] if info.problem else []
    found += [f"GPU {gpu.index} is unhealthy" for gpu in info.inventory.gpus if not gpu.healthy]
    unknown = [booking.key for booking in ledger.unplaced(info.name)] if info.serving_mode.blocks else []
    if unknown:
        found.append(f"takes no GPU pods: nobody knows the GPUs of {', '.join(sorted(unknown))}")
    found += [_worded(each) for each in _conditions(node, lambda kind: kind.startswith(CONDITION_PREFIX))]
    ready = _conditions(node, lambda kind: kind == "Ready", bad=("False", "Unknown"))
    found += [f"not ready: {_worded(each)}" for each in ready]
    return tuple(found)


def _worded(condition: NodeCondition) -> str:
    return f"{condition.reason}: {condition.message}" if condition.message else condition.reason or condition.type


def _conditions(
    node: Node | None, wanted: Callable[[str], bool], bad: tuple[str, ...] = ("True",)
) -> list[NodeCondition]:
    if node is None:
        return []
    return [each for each in node.status.conditions if wanted(each.type) and each.status in bad]


def _condition(node: Node | None, kind: str) -> NodeCondition | None:
    return next(iter(_conditions(node, lambda each: each == kind)), None)


def _taints(node: Node | None) -> tuple[str, ...]:
    if node is None:
        return ()
    return tuple(f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}" for taint in node.spec.taints)
