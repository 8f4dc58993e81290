"""Reads the description of a GPU node pool (``kind: NodePool``), and reports all errors at once."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from gputile.api.conversion import ConversionError, convert
from gputile.api.quantity import MemorySize, QuantityError, parse_mib
from gputile.api.well_known import (
    LEGACY_MODEL_LABEL,
    MODE_LABEL,
    MODEL_COUNT_PREFIX,
    PLACEMENT_LABEL,
    SMALLEST_UNIT_MIB,
    Mode,
    Placement,
)
from gputile.api.wording import described, matching, unsupported
from gputile.core.devices.inventory import MOST_GPUS, MOST_MIB, Gpu, model_labels

# The values of ``way`` that each provider supports (docs/guides/nodepools.md).
WAYS = {
    "eks": ("accelerated-image", "gpu-operator"),
    "aks": ("own-plugin", "gpu-operator"),
    "gke": ("managed-driver", "own-driver"),
}
_POOL_NAME_RULE: Final = (
    "2 to 40 lower-case letters, digits and '-', with a letter first and no '-' at the end"
)


Way = Literal["accelerated-image", "gpu-operator", "own-plugin", "managed-driver", "own-driver"]
Autoscaler = Literal["cluster-autoscaler", "karpenter"]
AUTOSCALERS: Final = get_args(Autoscaler)


class _PoolSection(
    msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True
):
    """A section of the description. An unknown field is an error, because it may be a typo."""


class Gpus(_PoolSection, frozen=True, kw_only=True):
    """The GPUs of one node."""

    count: Annotated[int, described("The number of GPUs of a node.", ge=1, le=MOST_GPUS)] = 1
    memory: Annotated[
        MemorySize,
        described(
            "The memory of a GPU as nvidia-smi --query-gpu=memory.total prints it, for example "
            "23028MiB."
        ),
    ]
    model: Annotated[
        str, described("The model of the GPUs, as nvidia-smi prints it.", max_length=96)
    ] = ""


class NodePool(_PoolSection, frozen=True, kw_only=True):
    """The description of a pool of equal GPU nodes."""

    api_version: Annotated[
        Literal["gputile.io/v1alpha1"], described("The version of this file.")
    ] = "gputile.io/v1alpha1"
    kind: Annotated[Literal["NodePool"], described("The kind of this file.")] = "NodePool"
    provider: Annotated[Literal["eks", "aks", "gke"], described("The cloud.")]
    way: Annotated[
        Way, described("How the nodes get driver and device plugin. Each provider has two ways.")
    ]
    name: Annotated[
        str, matching("[a-z][a-z0-9-]{0,38}[a-z0-9]", _POOL_NAME_RULE, "The pool's name.")
    ]
    cluster: Annotated[str, described("The cluster's name.", min_length=1)]
    location: Annotated[str, described("The region (EKS) or the location (GKE).")] = ""
    resource_group: Annotated[str, described("The resource group (AKS only).")] = ""
    instance_type: Annotated[
        str, described("The type of the instances, VMs or machines.", min_length=1)
    ]
    accelerator: Annotated[str, described("GKE's name of the GPU, such as nvidia-l4.")] = ""
    gpus: Annotated[Gpus, described("The GPUs of one node.")]
    min_nodes: Annotated[int, described("The smallest number of nodes.", ge=0, le=1000)] = 0
    max_nodes: Annotated[int, described("The largest number of nodes.", ge=1, le=1000)] = 3
    mode: Annotated[Mode, described("The node mode.")] = Mode.EXCLUSIVE
    placement: Annotated[
        Placement | None,
        described("The value of the label ack.node.gpu.placement. By default there is no label."),
    ] = None
    gpu_memory_unit: Annotated[MemorySize, described("The cluster's memory unit.")] = "1GiB"
    autoscaler: Annotated[Autoscaler, described("The autoscaler that adds nodes.")] = (
        "cluster-autoscaler"
    )
    labels: Annotated[dict[str, str], described("Further node labels.")] = {}

    @property
    def unit_mib(self) -> int:
        return parse_mib(self.gpu_memory_unit)

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """The GPUs that the agent of a node will report."""
        mib = parse_mib(self.gpus.memory)
        return tuple(
            Gpu(index=i, uuid=f"GPU-{i}", mib=mib, model=self.gpus.model)
            for i in range(self.gpus.count)
        )


class DescriptionError(ValueError):
    """The description is invalid. The message names the field, the rule and the valid values."""


def load_nodepool(data: Any) -> NodePool:
    """Validate a parsed YAML description.

    Raises:
        DescriptionError: the description is invalid. The message lists all errors.
    """
    try:
        pool = convert(data, NodePool)
    except ConversionError as error:
        raise DescriptionError(str(error)) from error
    problems = _problems(pool) or list(_label_problems(pool))
    if problems:
        raise DescriptionError("; ".join(problems))
    return pool


def _problems(pool: NodePool) -> list[str]:
    found = [*_missing(pool), *_sizes(pool)]
    ways = WAYS[pool.provider]
    if pool.way not in ways:
        found.append(f"way: for {pool.provider}: {unsupported(pool.way, ways)}")
    if pool.min_nodes > pool.max_nodes:
        found.append(f"minNodes is {pool.min_nodes}, more than maxNodes, {pool.max_nodes}")
    if pool.autoscaler == "karpenter" and pool.provider != "eks":
        found.append("autoscaler: karpenter is written for eks only; use cluster-autoscaler")
    if pool.provider == "aks" and not (len(pool.name) <= 12 and pool.name.isalnum()):
        found.append(f"name is {pool.name!r}: AKS allows at most 12 letters and digits")
    if pool.way == "managed-driver" and pool.mode is not Mode.EXCLUSIVE:
        found.append(
            f"mode is {pool.mode.value!r}: with managed-driver, GKE's device plugin runs on the "
            "nodes and serves whole GPUs only; use way own-driver, or mode default"
        )
    return found


def _missing(pool: NodePool) -> list[str]:
    needed = {"eks": ("location",), "aks": ("resource_group",), "gke": ("location", "accelerator")}
    names = {
        "location": "location",
        "resource_group": "resourceGroup",
        "accelerator": "accelerator",
    }
    found = [
        f"{names[f]} is missing: {pool.provider} needs it"
        for f in needed[pool.provider]
        if not getattr(pool, f)
    ]
    other = [
        field for field in names if getattr(pool, field) and field not in needed[pool.provider]
    ]
    return found + [
        f"{names[field]} has no meaning for {pool.provider}: remove it" for field in other
    ]


def _sizes(pool: NodePool) -> list[str]:
    found, sizes = [], {}
    for field, text in (("gpuMemoryUnit", pool.gpu_memory_unit), ("gpus.memory", pool.gpus.memory)):
        try:
            sizes[field] = parse_mib(text)
        except QuantityError as error:
            found.append(f"{field}: {error}")
    unit, gpu = sizes.get("gpuMemoryUnit", SMALLEST_UNIT_MIB), sizes.get("gpus.memory")
    if unit < SMALLEST_UNIT_MIB:
        found.append(
            f"gpuMemoryUnit is {pool.gpu_memory_unit}: the smallest valid unit is "
            f"{SMALLEST_UNIT_MIB}MiB"
        )
    elif gpu is not None and gpu > MOST_MIB:
        found.append(
            f"gpus.memory is {pool.gpus.memory}: the most that a GPU may have is {MOST_MIB}MiB"
        )
    elif gpu is not None and gpu < unit:
        found.append(
            f"gpus.memory is {pool.gpus.memory}: a GPU must have at least one unit of "
            f"{pool.gpu_memory_unit}"
        )
    return found


_KUBERNETES: Final = re.compile(r"(.*\.)?(kubernetes|k8s)\.io")
_KUBELETS: Final = re.compile(r"(.*\.)?(kubelet|node)\.kubernetes\.io")


def _label_problems(pool: NodePool) -> Iterator[str]:
    """Yield a problem for each label that contradicts the description or that kubelets refuse."""
    known = joining_labels(pool) | model_labels(pool.devices)
    for key, value in pool.labels.items():
        domain = key.rpartition("/")[0]
        if key in known and value != known[key]:
            yield (
                f"labels: {key} is {value!r}, which contradicts the other fields "
                f"({known[key]!r}): remove the label"
            )
        elif _KUBERNETES.fullmatch(domain) and not _KUBELETS.fullmatch(domain):
            yield (
                f"labels: {key}: a kubelet refuses unknown labels of kubernetes.io and k8s.io, so "
                "no node would join: use a domain of your own, or node.kubernetes.io"
            )


def joining_labels(pool: NodePool) -> dict[str, str]:
    """Return gputile's labels with which nodes register (M11), such as the mode and GPU model."""
    labels = {MODE_LABEL: pool.mode.value}
    if pool.placement is not None:
        labels[PLACEMENT_LABEL] = pool.placement
    if pool.gpus.model:
        # A kubelet may not set unknown labels of kubernetes.io, so the agent sets the legacy label.
        labels |= {
            key: value
            for key, value in model_labels(pool.devices).items()
            if key != LEGACY_MODEL_LABEL and not key.startswith(MODEL_COUNT_PREFIX)
        }
    return labels
