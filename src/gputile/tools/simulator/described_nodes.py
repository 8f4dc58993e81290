"""Creates the Node objects that ``kind: Cluster``, ``kind: Node`` and ``--with-node`` describe."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from gputile.api.core import (
    Node,
    NodeAddress,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    ResourceList,
    Taint,
)
from gputile.api.quantity import QuantityError, decimal, parse_mib, parse_quantity
from gputile.api.well_known import (
    CLAIMS_LABEL,
    DEFAULT_UNIT_MIB,
    GPU_COUNT,
    INVENTORY_ANNOTATION,
    MODE_LABEL,
    MODES,
    PLACEMENT_LABEL,
    REPLICAS_LABEL,
    SHARED_MEMORY_LABEL,
    SHARING_LABEL,
    SMALLEST_UNIT_MIB,
    WHOLE_GPU,
    Mode,
)
from gputile.api.wording import nearest, unsupported
from gputile.core.devices.inventory import (
    MOST_GPUS,
    MOST_MIB,
    MOST_REPLICAS,
    Gpu,
    Inventory,
    InventoryError,
    check_inventory,
    decode_inventory,
    encode_inventory,
    model_labels,
    resources_for_mode,
)
from gputile.tools.simulator.described_cluster import (
    API_VERSION,
    MOST_NODES,
    ClusterDescription,
    DescribedNode,
    GpuGroup,
)
from gputile.tools.simulator.manifests import Manifest, Origin, check_name, make_gpu_uuid, make_uid

# The memory of GPUs in MiB as nvidia-smi prints it, by a pattern for words in the model's name.
# It is used if the user states no memory.
_USUAL_MIB: Final = (
    ("gb200", 189471),
    ("b200", 183359),
    ("h200", 143771),
    ("h100.nvl", 95830),
    ("h20", 97871),
    ("h100", 81559),
    ("h800", 81559),
    ("a100.*80(g|gb|gib)?", 81920),
    ("a100", 40960),
    ("a800", 81920),
    ("a30", 24576),
    ("a40", 46068),
    ("a10g?", 23028),
    ("l40s?", 46068),
    ("l4", 23034),
    ("t4", 15360),
    ("v100s?.*32(g|gb|gib)?", 32768),
    ("v100", 16384),
    ("p100", 16384),
    ("p40", 23040),
    ("p4", 7680),
)
_WORD: Final = "(?<![a-z0-9]){}(?![a-z0-9])"
# Bandwidths between two GPUs in one direction in GB/s: NVLink of an A100, and PCIe 4.0 x16.
_LINKS = {"nvlink": 300, "pcie": 32}
# Labels that kubelets set. NVIDIA GPUs can be shared only on Linux.
_KUBELET_LABELS = {
    **dict.fromkeys(("kubernetes.io/os", "beta.kubernetes.io/os"), "linux"),
    **dict.fromkeys(("kubernetes.io/arch", "beta.kubernetes.io/arch"), "amd64"),
}
_SHARING = ("mig", "none", "time-slicing")  # values of the label gputile.io/sharing
_TIME_SLICING = _SHARING[2]
_DISK = "1024Gi"
_GPU_TAINT = Taint(key=WHOLE_GPU, effect="NoSchedule")


def described_unit(manifest: Manifest) -> int | None:
    """Return the memory unit of a ``kind: Cluster`` in MiB, or None if the file names no unit.

    Raises:
        ManifestError: the description or the unit is invalid.
    """
    text = _decode(manifest).gpu_memory_unit
    if text is None:
        return None
    unit = _mib(manifest.origin, "gpuMemoryUnit", text)
    if unit < SMALLEST_UNIT_MIB:
        raise manifest.origin.error(
            "gpuMemoryUnit", f"{text} is smaller than {SMALLEST_UNIT_MIB}MiB, the smallest unit"
        )
    return unit


def described_nodes(manifest: Manifest, default_mib: int = DEFAULT_UNIT_MIB) -> Iterator[Node]:
    """Yield the nodes of a ``kind: Cluster``. Their default memory unit is ``default_mib``, in MiB.

    Raises:
        ManifestError: a field is unknown or invalid. The message lists the valid values.
    """
    cluster, unit = _decode(manifest), described_unit(manifest) or default_mib
    total = sum(node.count or 1 for node in cluster.nodes)
    if total > MOST_NODES:
        raise manifest.origin.error("nodes", f"{total} nodes are more than {MOST_NODES}")
    for i, node in enumerate(cluster.nodes):
        yield from _NodeBuilder(manifest.origin, f"nodes[{i}]", unit).nodes(node)


def usual_mib(model: str) -> int:
    """Return the usual memory of a GPU model in MiB, or 0 if unknown."""
    found = (mib for each, mib in _USUAL_MIB if re.search(_WORD.format(each), model.lower()))
    return next(found, 0)


def nodes_of_text(
    text: str, number: int, unit_mib: int, source: str = "--with-node"
) -> Iterator[Node]:
    """Yield the nodes that a text such as ``2x8xH100:cgpu`` or ``1x4xMODEL=48GiB`` describes.

    The mode is optional. ``number`` becomes part of the nodes' names. It must be different for each
    text, so that all names are different. Errors name ``source`` as the source of the text.

    Raises:
        ManifestError: the text has the wrong format, or the memory of the model is unknown.
    """
    origin = Origin(f"{source} {text}")
    usage = "use COUNTxGPUSxMODEL[=MEMORY][:MODE], such as 2x8xH100:cgpu"
    written, colon, mode = text.partition(":")
    *counts, last = written.split("x", 2)
    model, _, memory = last.partition("=")
    if len(counts) < 2 or not all(decimal(count, 5) > 0 for count in counts) or not model:
        raise origin.error("", usage)
    if not memory and not usual_mib(model):
        known = (re.split("[^a-z0-9]", pattern)[0].upper() for pattern, _ in _USUAL_MIB)
        hint = f"state it, as {written}=48GiB{colon}{mode}{nearest(model, known)}"
        raise origin.error("", f"the memory of a {model} is unknown: {hint}")
    node = {"name": f"new-{number}", "count": int(counts[0])} | ({"mode": mode} if colon else {})
    gpus = {"count": int(counts[1]), "model": model, "memory": memory or f"{usual_mib(model)}MiB"}
    body = {"apiVersion": API_VERSION, "kind": "Cluster", "nodes": [node | {"gpus": gpus}]}
    yield from described_nodes(Manifest(origin, API_VERSION, "Cluster", body), unit_mib)


def inventory_of(node: Node) -> Inventory | None:
    """Return the inventory in a node's annotation, or None if it is missing or invalid."""
    try:
        return decode_inventory(node.metadata.annotations[INVENTORY_ANNOTATION])
    except (InventoryError, KeyError):
        return None


def written_node(manifest: Manifest) -> Node:
    """Return the node in a ``kind: Node`` manifest, for example from ``kubectl get node -o yaml``.

    Raises:
        ManifestError: a field has the wrong type, or a name or an amount is invalid.
    """
    node = manifest.decode(Node)
    check_name(manifest.origin, "metadata.name", node.metadata.name)
    for field, amounts in (
        ("capacity", node.status.capacity),
        ("allocatable", node.status.allocatable),
    ):
        for name, amount in amounts.items():
            if why := _amount_problem(amount):
                raise manifest.origin.error(f'status.{field}["{name[:80]}"]', why)
    uid = node.metadata.uid or make_uid("Node", "", node.metadata.name)
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, uid=uid))


def _decode(manifest: Manifest) -> ClusterDescription:
    if manifest.api_version != API_VERSION:
        raise manifest.origin.error(
            "apiVersion", f"{manifest.api_version[:80]!r} is unknown; use {API_VERSION}"
        )
    return manifest.decode(ClusterDescription)


def _mib(origin: Origin, path: str, text: str) -> int:
    try:
        return parse_mib(text)
    except QuantityError as error:
        raise origin.error(path, str(error)) from error


class _NodeBuilder:
    """Creates the Node objects of one entry of ``nodes``. Every error names the entry's path."""

    def __init__(self, origin: Origin, path: str, unit_mib: int) -> None:
        self._origin = origin
        self._path = path
        self._unit = unit_mib

    def nodes(self, described: DescribedNode) -> Iterator[Node]:
        label = described.labels.get(MODE_LABEL)
        written = label if label is not None else Mode.EXCLUSIVE.value
        mode = described.mode or Mode(self._one_of(f'labels["{MODE_LABEL}"]', written, MODES))
        if label not in (None, mode.value):
            raise self._error(
                f'labels["{MODE_LABEL}"]',
                f"{label[:40]!r} contradicts mode {mode.value}: remove one",
            )
        names = [described.name]
        if described.count is not None:
            names = [f"{described.name}-{i}" for i in range(1, described.count + 1)]
        for name in names:
            check_name(self._origin, f"{self._path}.name", name)
            yield self._node(described, name, mode)

    def _node(self, described: DescribedNode, name: str, mode: Mode) -> Node:
        inventory = self._inventory(described, name, mode)
        gpus = inventory.gpus
        annotations, gpu_labels = dict(described.annotations), dict[str, str]()
        if gpus:
            annotations[INVENTORY_ANNOTATION] = encode_inventory(inventory)
            gpu_labels = model_labels(gpus)
        if described.mode is not None:
            gpu_labels[MODE_LABEL] = mode.value
        if described.placement is not None:
            gpu_labels[PLACEMENT_LABEL] = described.placement
        labels = {"kubernetes.io/hostname": name, **_KUBELET_LABELS} | gpu_labels | described.labels
        other_resources = self._other_resources(described)
        capacity: ResourceList = dict(other_resources)
        allocatable: ResourceList = dict(other_resources)
        if gpus and not inventory.claims:
            for resources, unhealthy in ((capacity, True), (allocatable, False)):
                offered = resources_for_mode(mode, gpus, self._unit, count_unhealthy=unhealthy)
                offered[WHOLE_GPU] *= inventory.replicas or 1
                resources |= {resource: str(count) for resource, count in offered.items()}
            if mode.shared:
                capacity[GPU_COUNT] = allocatable[GPU_COUNT] = str(len(gpus))
        taints: tuple[Taint, ...] = (_GPU_TAINT,) if gpus else ()
        if described.taints is not None:
            taints = tuple(
                Taint(key=each.key, value=each.value, effect=each.effect)
                for each in described.taints
            )
        addresses = [NodeAddress(type="Hostname", address=name)]
        if described.address:
            addresses.insert(0, NodeAddress(type="InternalIP", address=described.address))
        return Node(
            metadata=ObjectMeta(
                name=name, uid=make_uid("Node", "", name), labels=labels, annotations=annotations
            ),
            spec=NodeSpec(unschedulable=described.unschedulable, taints=taints),
            status=NodeStatus(
                capacity=capacity, allocatable=allocatable, addresses=tuple(addresses)
            ),
        )

    def _inventory(self, described: DescribedNode, name: str, mode: Mode) -> Inventory:
        groups = [described.gpus] if isinstance(described.gpus, GpuGroup) else described.gpus
        if sum(group.count for group in groups) > MOST_GPUS:
            raise self._error("gpus", f"a node has at most {MOST_GPUS} GPUs")
        gpus: list[Gpu] = []
        for i, group in enumerate(groups):
            path = f"gpus[{i}]" if isinstance(described.gpus, list) else "gpus"
            unhealthy = set(group.unhealthy)
            if not unhealthy <= set(range(group.count)):
                raise self._error(
                    f"{path}.unhealthy", f"the group's GPUs are 0 to {group.count - 1}"
                )
            mib = _mib(self._origin, f"{self._path}.{path}.memory", group.memory)
            if mode.shared and (shared := described.labels.get(SHARED_MEMORY_LABEL)) is not None:
                mib = min(
                    mib, _mib(self._origin, f'{self._path}.labels["{SHARED_MEMORY_LABEL}"]', shared)
                )
            if not 0 < mib <= MOST_MIB:
                raise self._error(
                    f"{path}.memory", f"{group.memory} is not between 1MiB and {MOST_MIB}MiB"
                )
            for position in range(group.count):
                uuid, healthy = make_gpu_uuid(name, len(gpus)), position not in unhealthy
                gpus.append(
                    Gpu(index=len(gpus), uuid=uuid, mib=mib, model=group.model, healthy=healthy)
                )
        replicas, links = self._replicas(described.labels, mode), self._bandwidth(groups)
        claims = self._serves_claims(described.labels, mode, replicas)
        inventory = Inventory(
            tuple(gpus),
            mode=mode.value,
            unit_mib=self._unit,
            replicas=replicas,
            bandwidth=links,
            claims=claims,
        )
        try:
            return check_inventory(inventory)
        except InventoryError as error:
            raise self._error("gpus", str(error)) from error

    def _replicas(self, labels: Mapping[str, str], mode: Mode) -> int:
        """Return how many replicas of each GPU the labels request, or 0 without time-slicing."""
        value, field = labels.get(SHARING_LABEL), f'labels["{SHARING_LABEL}"]'
        if value is None or self._one_of(field, value, _SHARING) != _TIME_SLICING:
            return 0
        if mode is not Mode.EXCLUSIVE:
            raise self._error(
                field, f"{value} is valid in mode {Mode.EXCLUSIVE.value} only, not in {mode.value}"
            )
        replicas = decimal(text := labels.get(REPLICAS_LABEL, ""), 3)
        if not 2 <= replicas <= MOST_REPLICAS:
            raise self._error(
                f'labels["{REPLICAS_LABEL}"]', f"must be 2 to {MOST_REPLICAS}, is {text[:40]!r}"
            )
        return replicas

    def _serves_claims(self, labels: Mapping[str, str], mode: Mode, replicas: int) -> bool:
        """Return whether the node serves claims. An invalid value of its label is an error."""
        field = f'labels["{CLAIMS_LABEL}"]'
        claims = self._one_of(field, labels.get(CLAIMS_LABEL, "false"), ("true", "false")) == "true"
        if claims and (mode is Mode.SHARE or replicas):
            raise self._error(field, f"it is invalid in mode {Mode.SHARE} and with {_TIME_SLICING}")
        return claims

    def _bandwidth(self, groups: list[GpuGroup]) -> tuple[tuple[float, ...], ...]:
        """Return the bandwidth matrix of the node in GB/s, or () if no group states a bandwidth.

        GPUs of different groups are assumed to be connected by PCIe.
        """
        if not any(group.bandwidth for group in groups):
            return ()
        size = sum(group.count for group in groups)
        matrix: list[list[float]] = [[_LINKS["pcie"]] * size for _ in range(size)]
        start = 0
        for group in groups:
            for i, row in enumerate(self._group_bandwidth(group)):
                matrix[start + i][start : start + group.count] = row
            start += group.count
        for i in range(size):
            matrix[i][i] = 0
        return tuple(map(tuple, matrix))

    def _group_bandwidth(self, group: GpuGroup) -> list[list[float]]:
        given, count = group.bandwidth, group.count
        if isinstance(given, str):
            link = _LINKS[given or "pcie"]
            return [[link] * count for _ in range(count)]
        if len(given) != count or any(len(row) != count for row in given):
            raise self._error(
                "gpus.bandwidth", f"a matrix for {count} GPUs has {count} rows of {count} numbers"
            )
        return given

    def _other_resources(self, described: DescribedNode) -> ResourceList:
        """Return the node's non-GPU resources. Memory may be written as "64GiB" or "64Gi"."""
        memory = described.memory
        if isinstance(memory, str) and memory.endswith("iB"):
            memory = f"{_mib(self._origin, f'{self._path}.memory', memory)}Mi"
        resources: ResourceList = {"cpu": described.cpu, "memory": memory, "pods": described.pods}
        resources["ephemeral-storage"] = _DISK
        resources |= described.resources
        for name, amount in resources.items():
            path = name if name in ("cpu", "memory") else f'resources["{name[:80]}"]'
            if why := _amount_problem(amount):
                raise self._error(path, why)
        return resources

    def _one_of(self, field: str, value: str, valid: Iterable[str]) -> str:
        if value not in valid:
            raise self._error(field, unsupported(value, valid))
        return value

    def _error(self, field: str, rule: str) -> Exception:
        return self._origin.error(f"{self._path}.{field}", rule)


def _amount_problem(amount: str | int | float) -> str | None:
    """Return why an amount of a resource is invalid, or None if the amount is valid."""
    try:
        value = parse_quantity(amount)
    except QuantityError as error:
        return str(error)
    return f"{amount} is negative" if value < 0 else None
