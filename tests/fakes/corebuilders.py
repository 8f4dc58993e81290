"""Nodes and pods in one line each, for the tests of the core."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Container, Node, NodeStatus, ObjectMeta, Pod, PodSpec, PodStatus, ResourceRequirements
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GPU_CORE,
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    INVENTORY_ANNOTATION,
    MODE_LABEL,
)
from gputile.api.well_known import PLACEMENT_LABEL as PLACEMENT
from gputile.core.devices.allocation import Allocation, GpuShare, decode_allocation, encode_allocation
from gputile.core.devices.inventory import Gpu, Inventory, encode_inventory
from gputile.core.devices.request import Request, parse_request
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES, HostResources
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine

Amount = int | str | float
GIB15 = 15 * 1024


def gpus_of(node: str, sizes: Sequence[int], unhealthy: Sequence[int] = ()) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, f"GPU-{node}-{i}", mib, healthy=i not in unhealthy) for i, mib in enumerate(sizes))


def gpu_node(
    name: str = "n",
    *,
    mode: str = "",
    sizes: Sequence[int] = (GIB15,) * 4,
    unhealthy: Sequence[int] = (),
    placement: str = "",
    unit_mib: int = 0,
    replicas: int = 0,
    claims: bool = False,
    bandwidth: tuple[tuple[float, ...], ...] = (),
    models: Sequence[str] = (),
    inventory: str | None = None,
    allocatable: Mapping[str, str] | None = None,
) -> Node:
    """A node whose agent reports GPUs of ``sizes`` MiB and of ``models`` in turn.

    ``inventory`` replaces its annotation's text.
    """
    text = inventory
    if text is None:
        gpus = gpus_of(name, sizes, unhealthy)
        if models:
            gpus = tuple(msgspec.structs.replace(gpu, model=models[i % len(models)]) for i, gpu in enumerate(gpus))
        inventoried = Inventory(gpus, unit_mib=unit_mib, replicas=replicas, bandwidth=bandwidth, claims=claims)
        text = encode_inventory(inventoried)
    labels = ({MODE_LABEL: mode} if mode else {}) | ({PLACEMENT: placement} if placement else {})
    return Node(
        metadata=ObjectMeta(name=name, labels=labels, annotations={INVENTORY_ANNOTATION: text} if text else {}),
        status=NodeStatus(allocatable=dict(allocatable or {})),
    )


def container(
    name: str = "main", *, sidecar: bool = False, asks: Mapping[str, Amount] | None = None, **limits: Amount
) -> Container:
    """A container; ``mem`` and ``core`` are short for the shared resources; ``asks`` adds limits by any name."""
    short = {"mem": GPU_MEMORY, "core": GPU_CORE}
    resources = ResourceRequirements(
        limits={short.get(key, key): value for key, value in {**limits, **(asks or {})}.items()}
    )
    return Container(name=name, resources=resources, restart_policy="Always" if sidecar else "")


def pod(
    uid: str = "p",
    *containers: Container,
    init: Sequence[Container] = (),
    count: int | str | None = None,
    namespace: str = "default",
    node: str = "",
    phase: str = "",
    annotations: Mapping[str, str] | None = None,
    asks: Mapping[str, Amount] | None = None,
    **limits: Amount,
) -> Pod:
    """A pod; ``asks`` adds limits by any name to those of its one container, and ``count`` among them is ``count``."""
    asked = {**limits, **(asks or {})}
    gpus = asked.pop("count", count)
    labels = {GPU_COUNT_LABEL: str(gpus)} if gpus is not None else {}
    meta = ObjectMeta(name=uid, namespace=namespace, uid=uid, labels=labels, annotations=dict(annotations or {}))
    spec = PodSpec(containers=containers or (container(asks=asked),), init_containers=tuple(init), node_name=node)
    return Pod(metadata=meta, spec=spec, status=PodStatus(phase=phase))


def request_of(asking: Pod, unit_mib: int = 1024) -> Request:
    request = parse_request(asking, unit_mib)
    assert request is not None
    return request


def ledger_of(*nodes: Node, configuration: Configuration | None = None) -> Ledger:
    ledger = Ledger(configuration or Configuration())
    for node in nodes:
        ledger.apply_node(node)
    return ledger


def share(uuid: str, mib: int, percent: int = 0) -> GpuShare:
    """Return a share of a GPU; its index is the number that the UUID ends in."""
    number = uuid.rpartition("-")[2]
    return GpuShare(uuid, int(number) if number.isdigit() else 0, mib, percent)


def book(
    ledger: Ledger,
    uid: str,
    node: str,
    *shares: GpuShare,
    namespace: str = "default",
    whole: bool = False,
    host: HostResources = NO_HOST_RESOURCES,
) -> None:
    """Assume a booking as it stands, lies included."""
    allocation = Allocation(shares, {}, 1024, whole=whole)
    ledger.assume(Booking(uid, namespace, uid, node, namespace, allocation, assumed_at=0.0, host=host))


def allocation_text(*shares: GpuShare, whole: bool = False) -> str:
    return encode_allocation(Allocation(shares, {"main": shares}, 1024, whole=whole))


def bound(name: str, node: str, gpu: int = 0, gib: int = 4, namespace: str = "default") -> Pod:
    """A pod that has memory of one GPU of the node."""
    held = {ALLOCATION_ANNOTATION: allocation_text(share(f"GPU-{node}-{gpu}", gib * 1024))}
    return pod(name, namespace=namespace, node=node, mem=gib, annotations=held)


def mib_on_gpus(pods: Iterable[Pod]) -> dict[str, int]:
    """Return how many MiB of each GPU bound pods have that have not finished."""
    held: dict[str, int] = {}
    for each in pods:
        if each.spec.node_name and not each.finished:
            for part in decode_allocation(each.metadata.annotations[ALLOCATION_ANNOTATION]).gpus:
                held[part.uuid] = held.get(part.uuid, 0) + part.mib
    return held


def fits_without(ledger: Ledger, request: Request, node: str, gone: Iterable[str]) -> bool:
    """Return whether a request gets GPUs of a node if the pods with these UIDs are not there."""
    engine = PlacementEngine(ledger.snapshot())
    for uid in gone:
        engine.ledger.remove_pod(uid)
    return isinstance(engine.decide(request, node, 0), Decision)
