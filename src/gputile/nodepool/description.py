"""The form of ``kind: NodePool``: what people type to describe a GPU node pool, with every mistake named at once."""

from typing import Annotated, Any, Literal

import msgspec

from gputile.api.quantity import QuantityError, parse_mib
from gputile.api.wellknown import MODES, SMALLEST_UNIT_MIB, Mode
from gputile.device.inventory import MOST_CARDS, Card

WAYS = {
    "eks": {
        "accelerated-image": "EKS's accelerated image, which has the driver; gputile's agent is the device plugin",
        "gpu-operator": "an image without a driver; NVIDIA's GPU Operator installs it, gputile's agent is the plugin",
    },
    "aks": {
        "own-plugin": "a GPU node pool, whose driver AKS installs; gputile's agent is the device plugin",
        "gpu-image": "AKS's specialised GPU image, which Azure has retired",
        "gpu-operator": "a GPU node pool without AKS's driver; NVIDIA's GPU Operator installs it",
    },
    "gke": {
        "managed-driver": "GKE installs the driver, and its own device plugin serves whole cards",
        "own-driver": "the driver's installer is a DaemonSet of one's own; gputile's agent is the device plugin",
    },
}
"""The ways of each provider, by the names that ``way`` takes."""


class DescriptionError(ValueError):
    """The description cannot be used; the text names the field, the rule and the valid values."""


class _Described(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What people type: an unknown field is an error, not a typo ignored."""


class Gpus(_Described, frozen=True, kw_only=True):
    """The cards of one node. ``memory`` is what ``nvidia-smi --query-gpu=memory.total`` prints, such as 23028MiB."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_CARDS)] = 1
    memory: str
    model: Annotated[str, msgspec.Meta(max_length=96)] = ""


class NodePool(_Described, frozen=True, kw_only=True):
    """A pool of equal GPU nodes.

    ``location`` is the region (EKS) or the location (GKE), ``resource_group`` AKS's. ``accelerator`` is GKE's name of
    the card, such as nvidia-l4. ``autoscaler`` is who adds nodes.
    """

    api_version: Literal["gputile.io/v1alpha1"] = "gputile.io/v1alpha1"
    kind: Literal["NodePool"] = "NodePool"
    provider: Literal["eks", "aks", "gke"]
    way: str
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9-]{0,38}[a-z0-9]$")]
    cluster: Annotated[str, msgspec.Meta(min_length=1)]
    location: str = ""
    resource_group: str = ""
    instance_type: Annotated[str, msgspec.Meta(min_length=1)]
    accelerator: str = ""
    gpus: Gpus
    min_nodes: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    max_nodes: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    mode: str = Mode.EXCLUSIVE.value
    placement: Literal["binpack", "spread"] | None = None
    gpu_memory_unit: str = "1GiB"
    autoscaler: Literal["cluster-autoscaler", "karpenter"] = "cluster-autoscaler"
    labels: dict[str, str] = {}

    @property
    def gpu_mode(self) -> Mode:
        """The node mode."""
        return Mode(self.mode)

    @property
    def unit_mib(self) -> int:
        """The memory unit in MiB."""
        return parse_mib(self.gpu_memory_unit)

    @property
    def cards(self) -> tuple[Card, ...]:
        """The cards of a node, as its agent will report them."""
        mib = parse_mib(self.gpus.memory)
        return tuple(Card(index=i, uuid=f"GPU-{i}", mib=mib, model=self.gpus.model) for i in range(self.gpus.count))


def load_nodepool(data: Any) -> NodePool:
    """Return the description in ``data``, what a YAML parser made of the file.

    Raises:
        DescriptionError: it cannot be used.
    """
    try:
        pool = msgspec.convert(data, NodePool)
    except msgspec.ValidationError as error:
        raise DescriptionError(str(error)) from error
    problems = list(_problems(pool))
    if problems:
        raise DescriptionError("; ".join(problems))
    return pool


def _problems(pool: NodePool) -> list[str]:
    found = [*_missing(pool), *_sizes(pool)]
    ways = WAYS[pool.provider]
    if pool.way not in ways:
        found.append(f"way is {pool.way!r}: valid for {pool.provider} are {', '.join(ways)}")
    if pool.mode not in MODES:
        found.append(f"mode is {pool.mode!r}: valid are {', '.join(MODES)}")
    if pool.min_nodes > pool.max_nodes:
        found.append(f"minNodes is {pool.min_nodes}, more than maxNodes, {pool.max_nodes}")
    if pool.autoscaler == "karpenter" and pool.provider != "eks":
        found.append("autoscaler: karpenter is written for eks only; use cluster-autoscaler")
    if pool.provider == "aks" and not (len(pool.name) <= 12 and pool.name.isalnum()):
        found.append(f"name is {pool.name!r}: AKS takes at most 12 letters and digits")
    if pool.way == "managed-driver" and pool.mode != Mode.EXCLUSIVE.value:
        found.append(
            f"mode is {pool.mode!r}: with managed-driver GKE's installer comes in the pod of GKE's device plugin, "
            "which serves whole cards only; use way own-driver, or mode default"
        )
    return found


def _missing(pool: NodePool) -> list[str]:
    needed = {"eks": ("location",), "aks": ("resource_group",), "gke": ("location", "accelerator")}
    names = {"location": "location", "resource_group": "resourceGroup", "accelerator": "accelerator"}
    return [f"{names[f]} is missing: {pool.provider} needs it" for f in needed[pool.provider] if not getattr(pool, f)]


def _sizes(pool: NodePool) -> list[str]:
    found, sizes = [], {}
    for field, text in (("gpuMemoryUnit", pool.gpu_memory_unit), ("gpus.memory", pool.gpus.memory)):
        try:
            sizes[field] = parse_mib(text)
        except QuantityError as error:
            found.append(f"{field}: {error}")
    unit, card = sizes.get("gpuMemoryUnit", SMALLEST_UNIT_MIB), sizes.get("gpus.memory")
    if unit < SMALLEST_UNIT_MIB:
        found.append(f"gpuMemoryUnit is {pool.gpu_memory_unit}: the smallest valid unit is {SMALLEST_UNIT_MIB}MiB")
    elif card is not None and card < unit:
        found.append(f"gpus.memory is {pool.gpus.memory}: a card holds not one unit of {pool.gpu_memory_unit}")
    return found
