"""Finds GPUs that gputile does not serve, to show and simulate clusters without gputile.

The GPUs of nodes are read from labels, annotations and resources of other systems: GPU Feature
Discovery, Karpenter, EKS, GKE, HAMi, gpushare and ACK. The GPUs of pods are read from annotations
of HAMi, gpushare and ACK. NVIDIA's device plugin does not publish which GPUs a pod uses.
A pod with GPUs from this plugin is therefore assumed to use the GPUs with the fewest pods.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import Final, TypeVar

import msgspec

from gputile.api.core import Node, Pod
from gputile.api.quantity import QuantityError, count_of, parse_mib
from gputile.api.well_known import (
    ACK_ALLOCATION,
    ALLOCATION_ANNOTATION,
    GPU_COUNT,
    GPU_MEMORY,
    GPUSHARE_INDEX,
    INVENTORY_ANNOTATION,
    MIG_PREFIX,
    MODE_LABEL,
    MODEL_LABEL,
    MODES,
    NODE_GPU_COUNT_LABEL,
    NODE_GPU_MEMORY_LABEL,
    WHOLE_GPU,
    Mode,
)
from gputile.api.wording import first_of
from gputile.core.devices.allocation import Allocation, GpuShare, allocate, encode_allocation
from gputile.core.devices.inventory import (
    MOST_GPUS,
    MOST_REPLICAS,
    Gpu,
    Inventory,
    InventoryError,
    decode_inventory,
    encode_inventory,
)
from gputile.core.devices.request import RequestError, parse_request
from gputile.tools.simulator.described_nodes import usual_mib
from gputile.tools.simulator.foreign_words import (
    GPU_COUNTERS,
    SHARED_GPU,
    gpu_field,
    with_shares,
    with_whole_gpus,
)
from gputile.tools.simulator.manifests import Note, make_gpu_uuid

# Marks in-memory Node objects whose GPUs other systems serve. It is never written to the cluster.
ADOPTED: Final = "gputile.io/adopted"
HAMI_NODE: Final = "hami.io/node-nvidia-register"
HAMI_POD: Final = "hami.io/vgpu-devices-allocated"
_GFD: Final = ("nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/gpu.product")
_KARPENTER, _EKS = (
    tuple(f"{prefix}/instance-gpu-{each}" for each in ("count", "memory", "name"))
    for prefix in ("karpenter.k8s.aws", "eks.amazonaws.com")
)
_GKE_MODEL: Final = "cloud.google.com/gke-accelerator"
_GKE_MIG: Final = "cloud.google.com/gke-gpu-partition-size"
_MOST_GIB: Final = 1024  # if a GPU has more memory units, the unit is MiB, otherwise GiB
_HAMI_FIELDS: Final = 4
_REPLICAS: Final = ("nvidia.com/gpu.replicas", "cloud.google.com/gke-max-shared-clients-per-gpu")


class _HamiDevice(msgspec.Struct):
    """A GPU in HAMi's annotation. ``devmem`` is its memory in MiB."""

    id: str
    devmem: int
    type: str = ""
    health: bool = True


@dataclass(slots=True)
class AdoptedCluster:
    """Nodes and pods with the annotations that gputile's agents would write for their GPUs.

    ``notes`` tell the user what was assumed or omitted.
    """

    nodes: list[Node] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def adopted_cluster(
    nodes: Iterable[Node], pods: Sequence[Pod], unit_mib: int, pending: Sequence[Pod] = ()
) -> AdoptedCluster:
    """Add inventories and allocations for the GPUs that gputile does not serve.

    ``unit_mib`` is the cluster's memory unit. Allocatable resources do not change, so a pod that
    did not fit before does not fit now. ``pending`` pods may get notes, but do not change.
    """
    found, known = AdoptedCluster(), dict[str, Inventory]()
    by_source: dict[str, list[str]] = {}
    unknown: list[str] = []
    claims = True
    for node in nodes:
        served = INVENTORY_ANNOTATION in node.metadata.annotations
        claims = claims and not served
        adopted = adopted_node(node, unit_mib)
        if adopted is None:
            found.nodes.append(node)
            offered = node.status.capacity
            counters = filter(GPU_COUNTERS.match, offered)
            if not served and any(count_of(offered, name) for name in counters):
                unknown.append(node.metadata.name)
            continue
        of_node, known[node.metadata.name] = adopted
        source = of_node.metadata.annotations[ADOPTED]
        by_source.setdefault(source, []).append(node.metadata.name)
        found.nodes.append(of_node)
    for source, names in by_source.items():
        found.notes.append(
            Note(f"gputile does not serve {first_of(names, 3)}: its GPUs are read from {source}")
        )
    if unknown:
        text = (
            "its GPUs are not shown: no label states their memory (install GPU Feature Discovery, "
            "or describe the node), another system shares them, or MIG splits them"
        )
        found.notes.append(Note(f"node {first_of(unknown, 3)}: {text}"))
    holders = {name: Counter[str]() for name in known}
    guessed = False
    for pod in pods:
        inventory = known.get(pod.spec.node_name)
        if inventory is None or pod.finished or ALLOCATION_ANNOTATION in pod.metadata.annotations:
            found.pods.append(pod)
            continue
        adopted_pod = with_allocation(pod, inventory, holders[pod.spec.node_name], unit_mib)
        guessed |= adopted_pod is not pod and inventory.mode == Mode.EXCLUSIVE
        found.pods.append(adopted_pod)
    if guessed:
        found.notes.append(
            Note("NVIDIA's device plugin does not publish the GPUs of pods: they are assumed")
        )
    uncounted = {
        pod.key: name for pod in (*found.pods, *pending) if (name := gpu_field(pod, claims))
    }
    if uncounted:
        named = first_of(sorted(set(uncounted.values())), 3)
        text = f"its GPUs are not counted: it asks for them by {named}, which gputile does not read"
        found.notes.append(Note(f"pod {first_of(list(uncounted), 3)}: {text}"))
    return found


def adopted_node(node: Node, unit_mib: int) -> tuple[Node, Inventory] | None:
    """Return a copy with the inventory of the node's GPUs, and the inventory.

    Return None if gputile serves the node, or if nothing describes its GPUs.
    """
    if INVENTORY_ANNOTATION in node.metadata.annotations:
        return None
    for source, read in _SOURCES:  # the first source that describes the GPUs counts
        try:
            inventory = read(node, unit_mib)
            if inventory is not None and inventory.gpus:
                inventory = decode_inventory(encode_inventory(inventory))
                return _annotated(with_inventory(node, inventory), ADOPTED, source), inventory
        except (InventoryError, QuantityError, ValueError, IndexError):
            continue
    return None


def _hami_inventory(node: Node, unit_mib: int) -> Inventory | None:
    text = node.metadata.annotations.get(HAMI_NODE)
    if text is None:
        return None
    if text.lstrip().startswith("["):
        devices = msgspec.json.decode(text, type=list[_HamiDevice])
    else:
        fields = [each.strip().split(",") for each in text.split(":") if each.strip()]
        devices = [
            _HamiDevice(each[0], int(each[2]), each[4], "false" not in each[5:7]) for each in fields
        ]
    gpus = tuple(
        Gpu(
            index=i,
            uuid=each.id,
            mib=each.devmem,
            model=each.type.removeprefix("NVIDIA-"),
            healthy=each.health,
        )
        for i, each in enumerate(devices[:MOST_GPUS])
    )
    return Inventory(gpus=gpus, mode=Mode.CGPU, unit_mib=unit_mib)


def _gpushare_inventory(node: Node, unit_mib: int) -> Inventory | None:
    """Return the GPUs of a gpushare or ACK node. ``_gpushare_unit`` guesses the memory unit."""
    labels, offered = node.metadata.labels, node.status.capacity
    units, count = count_of(offered, GPU_MEMORY), count_of(offered, GPU_COUNT)
    count = count or int(labels.get(NODE_GPU_COUNT_LABEL, "0"))
    if not count or (not units and NODE_GPU_MEMORY_LABEL not in labels):
        return None
    unit = _gpushare_unit(units // count)
    mib = (
        parse_mib(labels[NODE_GPU_MEMORY_LABEL])
        if NODE_GPU_MEMORY_LABEL in labels
        else units // count * unit
    )
    mode = labels.get(MODE_LABEL, Mode.SHARE if units else Mode.EXCLUSIVE)
    gpus = _equal_gpus(node, count, mib, labels.get(MODEL_LABEL, ""))
    return Inventory(
        gpus=gpus,
        mode=mode if mode in MODES else Mode.SHARE,
        unit_mib=unit if unit > 1 else unit_mib,
    )


def _gpushare_unit(units: int) -> int:
    """Return the size of gpushare's memory unit in MiB, guessed from a GPU's number of units."""
    return 1 if units > _MOST_GIB else 1024


def _labelled_inventory(node: Node, count: str, memory: str, model: str) -> Inventory | None:
    """Return the GPUs that the labels ``count``, ``memory`` and ``model`` describe.

    Return None if the labels are incomplete, or if all GPUs are divided into MIG instances. The
    GPUs are time-sliced if labels of GPU Feature Discovery or GKE state replicas.
    """
    labels, offered = node.metadata.labels, node.status.capacity
    name = labels.get(model, "")
    if "-MIG-" in labels.get(_GFD[2], "") or _GKE_MIG in labels:
        return None
    replicas = int(next((labels[name] for name in _REPLICAS if name in labels), "1"))
    number = int(labels.get(count, "0")) or count_of(offered, WHOLE_GPU) // max(replicas, 1)
    mib = int(labels.get(memory, "0")) or usual_mib(name)
    if any(key.startswith(MIG_PREFIX) and count_of(offered, key) for key in offered):
        # The label also counts GPUs that MIG splits.
        number = min(number, count_of(offered, WHOLE_GPU) // max(replicas, 1))
    if not number or not mib or (count not in labels and not name):
        return None
    sliced = replicas if replicas > 1 else 0
    name = name.removesuffix("-SHARED")
    gpus = _equal_gpus(node, number, mib, name)
    return Inventory(gpus=gpus, mode=Mode.EXCLUSIVE, replicas=min(sliced, MOST_REPLICAS))


def _equal_gpus(node: Node, count: int, mib: int, model: str) -> tuple[Gpu, ...]:
    name = node.metadata.name
    return tuple(
        Gpu(index=i, uuid=make_gpu_uuid(name, i), mib=mib, model=model)
        for i in range(min(max(count, 0), MOST_GPUS))
    )


_SOURCES: Final[Sequence[tuple[str, Callable[[Node, int], Inventory | None]]]] = (
    ("HAMi's annotation", _hami_inventory),
    ("gpushare's or ACK's labels and resources", _gpushare_inventory),
    ("GPU Feature Discovery's labels", lambda node, _: _labelled_inventory(node, *_GFD)),
    ("Karpenter's labels", lambda node, _: _labelled_inventory(node, *_KARPENTER)),
    ("EKS's labels", lambda node, _: _labelled_inventory(node, *_EKS)),
    ("GKE's label", lambda node, _: _labelled_inventory(node, "", "", _GKE_MODEL)),
)


def with_allocation(pod: Pod, inventory: Inventory, holders: Counter[str], unit_mib: int) -> Pod:
    """Add an allocation annotation for the GPUs that another system allocated to the pod.

    If these GPUs are unknown, the pod is assumed to use the GPUs with the fewest pods. ``holders``,
    the number of such pods by GPU UUID, is then updated. If no GPUs can be assumed, no annotation
    is added.
    """
    amounts = _annotated_amounts(pod, inventory)
    if amounts:
        shares = tuple(
            GpuShare(gpu.uuid, gpu.index, *amounts[gpu.index])
            for gpu in inventory.gpus
            if gpu.index in amounts
        )
        least = min(share.mib for share in shares)
        shared = with_shares(pod, len(shares), max(1, least // unit_mib), 0)
        allocation = Allocation(shares, {}, unit_mib, mode=inventory.mode)
        return _annotated(shared, ALLOCATION_ANNOTATION, encode_allocation(allocation))
    if any(SHARED_GPU in each.resources.limits for each in pod.spec.containers):
        # The old request remains, because the kubelet counts it like any extended resource.
        pod = with_whole_gpus(pod, WHOLE_GPU, SHARED_GPU)
    try:
        request = parse_request(pod, unit_mib)
    except RequestError:
        return pod
    if request is None or inventory.mode != Mode.EXCLUSIVE:
        return pod
    by_pods = sorted(inventory.gpus, key=lambda gpu: (holders[gpu.uuid], gpu.index))
    slices = max(inventory.replicas, 1)
    chosen = list(islice(chain.from_iterable(repeat(by_pods, slices)), request.shape.gpus))
    if len(chosen) < request.shape.gpus:
        return pod
    holders.update(gpu.uuid for gpu in chosen)
    allocation = allocate(request, chosen, inventory.mode, 1)
    return _annotated(pod, ALLOCATION_ANNOTATION, encode_allocation(allocation))


def _annotated_amounts(pod: Pod, inventory: Inventory) -> dict[int, tuple[int, int]]:
    """Return a pod's memory in MiB and percent of compute on each GPU, by the GPU's index.

    The amounts are read from annotations of HAMi, ACK or gpushare.
    """
    annotations = pod.metadata.annotations
    index_of = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    amounts: dict[int, tuple[int, int]] = {}

    def add(index: int | None, mib: int, percent: int = 0) -> None:
        if index in index_of.values() and index is not None:
            before = amounts.get(index, (0, 0))
            amounts[index] = before[0] + mib, min(100, before[1] + percent)

    # Fields: the GPU's UUID, its kind, MiB and percent. ";" ends the list of a container.
    for each in re.split("[:;]", annotations.get(HAMI_POD, "")):
        fields = each.split(",")
        if len(fields) >= _HAMI_FIELDS and fields[2].isdecimal() and fields[3].isdecimal():
            uuid = fields[0].partition("[")[0]  # for a MIG instance, [n-m] follows the UUID
            add(index_of.get(uuid), int(fields[2]), int(fields[3]))
    requested = sum(count_of(each.resources.limits, GPU_MEMORY) for each in pod.spec.containers)
    unit = _gpushare_unit(requested) if requested else 1024
    index = annotations.get(GPUSHARE_INDEX, "")
    if ACK_ALLOCATION in annotations:
        try:
            containers = msgspec.json.decode(
                annotations[ACK_ALLOCATION], type=dict[str, dict[str, int]]
            )
        except msgspec.MsgspecError:
            return amounts
        for index, units in (item for each in containers.values() for item in each.items()):
            add(int(index) if index.isdecimal() else None, units * unit)
    elif index.isdecimal() and requested:
        add(int(index), requested * unit)
    return amounts


def with_inventory(node: Node, inventory: Inventory) -> Node:
    """Return a node with ``inventory`` in the annotation that agents write."""
    return _annotated(node, INVENTORY_ANNOTATION, encode_inventory(inventory))


_Annotated = TypeVar("_Annotated", Node, Pod)


def _annotated(found: _Annotated, name: str, text: str) -> _Annotated:
    annotations = {**found.metadata.annotations, name: text}
    return msgspec.structs.replace(
        found, metadata=msgspec.structs.replace(found.metadata, annotations=annotations)
    )
