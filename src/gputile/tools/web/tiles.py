"""Builds the page's records of nodes and pods from the ledger and the API server's objects."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.conversion import unix_seconds
from gputile.api.core import Node, NodeCondition, Pod
from gputile.api.well_known import CONDITION_PREFIX, MIG_PREFIX, ConditionType
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.request import RequestError, parse_request
from gputile.core.kube_predicates.pod_requests import node_allocatable, pod_requests
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import NodeInfo, ServingMode, closed_by, nothing_offered
from gputile.tools.simulator.foreign_cluster import ADOPTED
from gputile.tools.simulator.node_reports import gates_text, request_text
from gputile.tools.simulator.outcomes import workload_of
from gputile.tools.web.records import (
    GpuTile,
    MigCount,
    MigTile,
    NodeTile,
    PendingPod,
    PodTile,
    TileShare,
)

_SERVES: Final[Mapping[int, str]] = {
    ServingMode.WHOLE: "gpus",
    ServingMode.TOPOLOGY: "gpus",
    ServingMode.SLICED: "gpus",
    ServingMode.OTHER_PLUGIN: "gpus",
    ServingMode.MEMORY: "memory",
    ServingMode.MEMORY_AND_CORE: "memory",
}


def node_tile(
    ledger: Ledger,
    row: int,
    node: Node | None,
    pods: Mapping[str, Pod],
    on_instances: Collection[Pod] = (),
) -> NodeTile | None:
    """Return the record of the node in a ``row`` of the ledger.

    Return None if the node has no GPUs, MIG instances, bookings or problems. ``pods`` maps UIDs
    to the cluster's pods. ``on_instances`` are the pods with MIG instances on this node.
    """
    info = ledger.node_info(row)
    if info is None:
        return None
    bookings = sorted(
        ledger.on_node(info.name), key=lambda each: (each.namespace, each.name, each.uid)
    )
    problems = _problems(ledger, info, node)
    counts = {pod.metadata.uid: instances_of_pod(pod) for pod in on_instances}
    instances = instances_of_node(node, counts.values())
    if not info.inventory.gpus and not bookings and not problems and not instances:
        return None
    arrays = ledger.node_arrays
    shut = closed_by(node) if node is not None and (info.inventory.gpus or instances) else None
    ours = node is not None and ADOPTED not in node.metadata.annotations
    offers = (
        nothing_offered(node, info.mode, info.inventory, info.unit_mib)
        if node is not None and ours
        else None
    )
    closed = shut or offers
    serves = "" if closed is not None else _SERVES.get(int(arrays.serving_mode[row]), "")
    if not serves and shut is None and any(each.total for each in instances):
        serves = "instances"
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
    blocks = [_pod_tile(each, info, pods.get(_pod_uid(ledger, each))) for each in bookings]
    booked = {each.uid: block for each, block in zip(bookings, blocks, strict=True)}
    for pod in on_instances:
        uid = pod.metadata.uid
        tile = booked.get(uid) or _plain_tile(pod)
        booked[uid] = msgspec.structs.replace(tile, instances=counts[uid])
    return NodeTile(
        name=info.name,
        mode=info.mode.value if info.mode else "",
        unit=info.unit_mib,
        serves=serves,
        gpus=gpus,
        pods=tuple(sorted(booked.values(), key=lambda each: (each.namespace, each.name))),
        problems=(*problems, f"takes no GPU pods: {closed}") if closed is not None else problems,
        taints=_taints(node),
        silent=bool(_conditions(node, lambda kind: kind == ConditionType.AGENT_SILENT)),
        cordoned=node is not None and node.spec.unschedulable,
        replicas=info.replicas,
        instances=instances,
    )


def pending_pod(pod: Pod, configuration: Configuration) -> PendingPod | None:
    """Return the record of a pod that requests GPUs and is not bound, or None for other pods."""
    if pod.spec.node_name or pod.finished:
        return None
    waits = gates_text(pod) or ""
    try:
        request = parse_request(pod, configuration.unit_mib, configuration.trust_group)
    except RequestError as error:
        text = f"can never be placed: {error}"
    else:
        instances = instances_of_pod(pod) if request is None else ()
        if request is None and not instances:
            return None
        text = instances_text(instances) if instances else request_text(request)
    gang = gang_of(pod)
    meta = pod.metadata
    named = gang.name if gang is not None else ""
    return PendingPod(meta.namespace, meta.name, text, created_s(pod), named, waits, _workload(pod))


def created_s(pod: Pod | None) -> int:
    """Return a pod's creation time as Unix time in seconds, or 0 if unknown."""
    return int(unix_seconds(pod.metadata.creation_timestamp)) if pod is not None else 0


def _pod_tile(booking: Booking, info: NodeInfo, pod: Pod | None) -> PodTile:
    uuids = (share.uuid for share in booking.gpus)
    missing = next((uuid for uuid in uuids if info.column(uuid) is None), None)
    shares = [TileShare(index, *amounts) for index, amounts in booking.amounts_on(info).items()]
    return PodTile(
        namespace=booking.namespace,
        name=booking.name,
        shares=tuple(shares),
        workload=_workload(pod),
        whole=booking.whole,
        reserved=booking.reserved,
        created=created_s(pod),
        asked=0 if shares else booking.asked_mib,
        problem=f"it holds GPU {missing}, which the node does not have"
        if missing
        else booking.problem,
    )


def _pod_uid(ledger: Ledger, booking: Booking) -> str:
    """Return the UID of a booking's pod. A claim's booking belongs to the claim's first pod."""
    claim = ledger.claims.get(booking.uid)
    return claim.pods[0].uid if claim is not None and claim.pods else booking.uid


def _plain_tile(pod: Pod) -> PodTile:
    """Return the record of a pod that has only MIG instances and therefore no booking."""
    return PodTile(
        pod.metadata.namespace, pod.metadata.name, workload=_workload(pod), created=created_s(pod)
    )


def _workload(pod: Pod | None) -> str:
    if pod is None:
        return ""
    owner = workload_of(pod)
    return "" if owner.kind == "Pod" else owner.name


def _problems(ledger: Ledger, info: NodeInfo, node: Node | None) -> tuple[str, ...]:
    """Return sentences on the problems and failing conditions of a node and its GPUs."""
    found = [info.problem] if info.problem else []
    found += [f"GPU {gpu.index} is unhealthy" for gpu in info.inventory.gpus if not gpu.healthy]
    unknown = (
        [booking.key for booking in ledger.unplaced(info.name)] if info.serving_mode.blocks else []
    )
    if unknown:
        found.append(f"takes no GPU pods: the GPUs of {', '.join(sorted(unknown))} are unknown")
    found += [
        _text_of(each) for each in _conditions(node, lambda kind: kind.startswith(CONDITION_PREFIX))
    ]
    ready = _conditions(node, lambda kind: kind == "Ready", bad=("False", "Unknown"))
    found += [f"not ready: {_text_of(each)}" for each in ready]
    return tuple(found)


def _text_of(condition: NodeCondition) -> str:
    return (
        f"{condition.reason}: {condition.message}"
        if condition.message
        else condition.reason or condition.type
    )


def _conditions(
    node: Node | None, wanted: Callable[[str], bool], bad: tuple[str, ...] = ("True",)
) -> list[NodeCondition]:
    if node is None:
        return []
    return [each for each in node.status.conditions if wanted(each.type) and each.status in bad]


def _taints(node: Node | None) -> tuple[str, ...]:
    if node is None:
        return ()
    return tuple(
        f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"
        for taint in node.spec.taints
    )


_NO_INSTANCES: Final[tuple[MigCount, ...]] = ()


def instances_of_pod(pod: Pod) -> tuple[MigCount, ...]:
    """Return the number of MIG instances that a pod requests of each profile."""
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        resources = container.resources
        if any(name.startswith(MIG_PREFIX) for name in (*resources.limits, *resources.requests)):
            return _counts(pod_requests(pod.spec))
    return _NO_INSTANCES


def instances_of_node(
    node: Node | None, pods: Iterable[tuple[MigCount, ...]]
) -> tuple[MigTile, ...]:
    """Return the numbers of allocatable and booked MIG instances of a node, by profile.

    ``pods`` has the instances of each pod on the node.
    """
    counted = _counts(node_allocatable(node)) if node is not None else _NO_INSTANCES
    offered = {each.profile: each.count for each in counted}
    requested: dict[str, int] = {}
    for counts in pods:
        for each in counts:
            requested[each.profile] = requested.get(each.profile, 0) + each.count
    return tuple(
        MigTile(profile, offered.get(profile, 0), requested.get(profile, 0))
        for profile in sorted(offered.keys() | requested)
    )


def instances_text(counts: tuple[MigCount, ...]) -> str:
    return "asks for " + ", ".join(f"{each.count} of {MIG_PREFIX}{each.profile}" for each in counts)


def _counts(amounts: Mapping[str, int]) -> tuple[MigCount, ...]:
    found = (
        (name.removeprefix(MIG_PREFIX), count)
        for name, count in amounts.items()
        if name.startswith(MIG_PREFIX)
    )
    return tuple(MigCount(profile, count) for profile, count in sorted(found) if count > 0)
