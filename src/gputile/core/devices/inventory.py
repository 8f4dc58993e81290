"""Describes the GPUs of a node: its inventory annotation, resources and labels.

The agent publishes ``gputile.io/inventory`` as versioned JSON, which all other components read. A
node is semi-trusted, so its inventory is validated here. No other code has to handle a GPU without
memory, two GPUs with one UUID, or an inconsistent bandwidth matrix.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from gputile.api.conversion import VersionedCodec
from gputile.api.well_known import (
    GPU_CORE,
    GPU_MEMORY,
    LEGACY_MODEL_LABEL,
    MODEL_COUNT_PREFIX,
    MODEL_LABEL,
    MODES,
    NODE_GPU_COUNT_LABEL,
    NODE_GPU_MEMORY_LABEL,
    TOPOLOGY_GPU,
    WHOLE_GPU,
    Mode,
)

VERSION = 1
MOST_GPUS = 64
MOST_MIB = 16 * 1024 * 1024
MOST_REPLICAS = 64


class InventoryError(ValueError):
    """The inventory annotation cannot be read, or contradicts itself."""


class Gpu(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One GPU. ``mib`` is the total memory that NVML reports. ``numa`` is -1 if unknown."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=MOST_GPUS)]
    uuid: Annotated[str, msgspec.Meta(min_length=1, max_length=96)]
    mib: Annotated[int, msgspec.Meta(ge=1, le=MOST_MIB)]
    model: Annotated[str, msgspec.Meta(max_length=96)] = ""
    numa: int = -1
    healthy: bool = True


class Inventory(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The GPUs of one node, ordered by index.

    A node without an agent has neither ``mode`` nor ``unit_mib``: the node's label and the
    cluster's configuration apply. ``bandwidth[i][j]`` is the bandwidth between the i-th and the
    j-th GPU in GB/s (NVLink or PCIe). The diagonal is ignored. An unknown ``bandwidth`` is empty.
    """

    gpus: tuple[Gpu, ...] = msgspec.field(name="cards")
    version: int = VERSION
    mode: str = ""  # the mode in force
    unit_mib: int = 0  # the memory unit in force
    # How many pods share each whole GPU by time-slicing, 0 without time-slicing (G3)
    replicas: Annotated[int, msgspec.Meta(ge=0, le=MOST_REPLICAS)] = 0
    bandwidth: tuple[tuple[float, ...], ...] = ()
    claims: bool = False  # GPUs are offered by ResourceClaims, not by extended resources
    mig: bool = False  # MIG instances are offered as resources of their own
    shared_mib: Annotated[int, msgspec.Meta(ge=0)] = 0  # of each GPU for sharing, 0 for all memory


def check_inventory(inventory: Inventory) -> Inventory:
    """Validate ``inventory``, and return it with its GPUs sorted by index.

    Raises:
        InventoryError: there are too many GPUs, two GPUs share an index or a UUID, the bandwidth
            matrix has the wrong size or invalid values, or the memory unit is out of range.
    """
    gpus = inventory.gpus
    if len(gpus) > MOST_GPUS:
        raise InventoryError(f"{len(gpus)} GPUs are more than the {MOST_GPUS} that a node may have")
    for name, values in (("index", [c.index for c in gpus]), ("UUID", [c.uuid for c in gpus])):
        twice = next((v for i, v in enumerate(values) if v in values[:i]), None)
        if twice is not None:
            raise InventoryError(f"two GPUs have the {name} {twice}")
    size = len(inventory.bandwidth)
    if size and (size != len(gpus) or any(len(row) != size for row in inventory.bandwidth)):
        raise InventoryError(f"the bandwidth matrix must be {len(gpus)} x {len(gpus)}")
    for i in range(size):
        for j in range(i):
            forward, back = inventory.bandwidth[i][j], inventory.bandwidth[j][i]
            if forward != back or not 0 <= forward < 1e9:
                raise InventoryError(
                    f"the bandwidth between GPU {i} and GPU {j} is {forward} one way, {back} "
                    "the other: both must be equal, and 0 GB/s or more"
                )
    if inventory.unit_mib < 0 or inventory.unit_mib > MOST_MIB:
        raise InventoryError(f"the memory unit {inventory.unit_mib} MiB is out of range")
    order = sorted(range(len(gpus)), key=lambda i: gpus[i].index)
    if order == list(range(len(gpus))):
        return inventory
    return msgspec.structs.replace(
        inventory,
        gpus=tuple(gpus[i] for i in order),
        bandwidth=tuple(tuple(inventory.bandwidth[i][j] for j in order) for i in order)
        if size
        else (),
    )


_CODEC = VersionedCodec(Inventory, VERSION, InventoryError, check_inventory)
encode_inventory, decode_inventory = _CODEC.encode, _CODEC.decode


def unknown_mode(mode: str) -> str:
    """Return the message about an inventory whose mode is unknown to this version."""
    return (
        f"names the mode {mode[:63]!r}, which this version of gputile does not know; it knows "
        f"{', '.join(MODES)}"
    )


def advertised_units(gpu: Gpu, unit_mib: int) -> int:
    """Return the number of memory units that a GPU has: floor(MiB / unit) (U1, U2)."""
    return gpu.mib // unit_mib


CORE_PERCENT = 100  # gpu-core.percentage of one GPU
_LONGEST_LABEL = 63


def resources_for_mode(
    mode: Mode, gpus: Iterable[Gpu], unit_mib: int, *, count_unhealthy: bool = False
) -> dict[str, int]:
    """Return the resources that a node in ``mode`` advertises for ``gpus``.

    Resources of other modes are 0. Set ``count_unhealthy`` to compute the node's capacity, which
    includes unhealthy GPUs. Allocatable excludes them.
    """
    counted = [gpu for gpu in gpus if gpu.healthy or count_unhealthy]
    resources = {GPU_MEMORY: 0, GPU_CORE: 0, TOPOLOGY_GPU: 0, WHOLE_GPU: 0}
    if mode is Mode.EXCLUSIVE:
        resources[WHOLE_GPU] = len(counted)
    elif mode is Mode.TOPOLOGY:
        resources[TOPOLOGY_GPU] = len(counted)
    else:
        resources[GPU_MEMORY] = sum(advertised_units(gpu, unit_mib) for gpu in counted)
        if mode is Mode.CORE_MEM:
            resources[GPU_CORE] = CORE_PERCENT * len(counted)
    return resources


def model_label_value(model: str) -> str:
    """Return a model's name as a label value, with ``-`` for spaces and other invalid characters.

    >>> model_label_value("Tesla K80")
    'Tesla-K80'
    """
    return re.sub(r"[^A-Za-z0-9._-]", "-", model.strip())[:_LONGEST_LABEL].strip("-._")


def model_number(label: str) -> int:
    """Return the number that represents a model's label value in the ledger's arrays."""
    return zlib.crc32(label.encode())


def model_labels(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the labels that describe a node's GPUs: their number, models and memory.

    Each model has a label with the number of its GPUs. The other labels of model and memory are set
    only if all GPUs have the same value. A node without GPUs has none of these labels.
    """
    if not gpus:
        return {}
    counts = Counter(model_label_value(gpu.model) for gpu in gpus)
    labels = {NODE_GPU_COUNT_LABEL: str(len(gpus))}
    if len(counts) == 1 and (model := next(iter(counts))):
        labels[MODEL_LABEL] = labels[LEGACY_MODEL_LABEL] = model
    sizes = {gpu.mib for gpu in gpus}
    if len(sizes) == 1:
        labels[NODE_GPU_MEMORY_LABEL] = f"{sizes.pop()}MiB"
    return labels | {f"{MODEL_COUNT_PREFIX}{model}": str(n) for model, n in counts.items() if model}
