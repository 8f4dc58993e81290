"""Defines a GPU node pool as people describe it: ``kind: NodePool``."""

from typing import Annotated, Final, Literal, get_args

import msgspec

from gputile.api.quantity import MemorySize, parse_mib
from gputile.api.well_known import Mode, Placement
from gputile.api.wording import described, matching
from gputile.core.devices.inventory import MOST_GPUS, Gpu

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
        "managed-driver": "GKE installs the driver, and its own device plugin serves whole GPUs",
        "own-driver": "the driver's installer is a DaemonSet of one's own; gputile's agent is the device plugin",
    },
}
"""The ways of each provider, by the names that ``way`` takes."""


_NAME_RULE: Final = "2 to 40 lower-case letters, digits and '-', with a letter first and no '-' at the end"


Autoscaler = Literal["cluster-autoscaler", "karpenter"]
AUTOSCALERS: Final = get_args(Autoscaler)


class _PoolSection(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A part of a file that people write: an unknown field is an error, since it may be a typing mistake."""


class Gpus(_PoolSection, frozen=True, kw_only=True):
    """The GPUs of one node. ``memory`` is what ``nvidia-smi --query-gpu=memory.total`` prints, such as 23028MiB."""

    count: Annotated[int, described("How many GPUs a node has.", ge=1, le=MOST_GPUS)] = 1
    memory: Annotated[
        MemorySize, described("Memory of a GPU, as nvidia-smi --query-gpu=memory.total prints it: 23028MiB.")
    ]
    model: Annotated[str, described("Their model, as nvidia-smi prints it.", max_length=96)] = ""


class NodePool(_PoolSection, frozen=True, kw_only=True):
    """A pool of equal GPU nodes.

    ``location`` is the region (EKS) or the location (GKE), ``resource_group`` AKS's. ``accelerator`` is GKE's name of
    the GPU, such as nvidia-l4. ``autoscaler`` names the program that adds nodes.
    """

    api_version: Annotated[Literal["gputile.io/v1alpha1"], described("The version of this file.")] = (
        "gputile.io/v1alpha1"
    )
    kind: Annotated[Literal["NodePool"], described("What this file is.")] = "NodePool"
    provider: Annotated[Literal["eks", "aks", "gke"], described("Which cloud.")]
    way: Annotated[str, described("Where driver and device plugin come from: one of the provider's ways.")]
    name: Annotated[str, matching("[a-z][a-z0-9-]{0,38}[a-z0-9]", _NAME_RULE, "The pool's name.")]
    cluster: Annotated[str, described("The cluster's name.", min_length=1)]
    location: Annotated[str, described("EKS: the region; GKE: the location.")] = ""
    resource_group: Annotated[str, described("AKS: the resource group.")] = ""
    instance_type: Annotated[str, described("Instance, VM or machine type.", min_length=1)]
    accelerator: Annotated[str, described("GKE: the GPU, as nvidia-l4.")] = ""
    gpus: Annotated[Gpus, described("The GPUs of one node.")]
    min_nodes: Annotated[int, described("The fewest nodes.", ge=0, le=1000)] = 0
    max_nodes: Annotated[int, described("The most nodes.", ge=1, le=1000)] = 3
    mode: Annotated[Mode, described("The node mode.")] = Mode.EXCLUSIVE
    placement: Annotated[
        Placement | None, described("The label ack.node.gpu.placement; absent: the nodes have none.")
    ] = None
    gpu_memory_unit: Annotated[MemorySize, described("The cluster's memory unit.")] = "1GiB"
    autoscaler: Annotated[Autoscaler, described("Who adds nodes.")] = "cluster-autoscaler"
    labels: Annotated[dict[str, str], described("Further labels of the nodes.")] = {}

    @property
    def unit_mib(self) -> int:
        """The memory unit in MiB."""
        return parse_mib(self.gpu_memory_unit)

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """The GPUs of a node, as its agent will report them."""
        mib = parse_mib(self.gpus.memory)
        return tuple(Gpu(index=i, uuid=f"GPU-{i}", mib=mib, model=self.gpus.model) for i in range(self.gpus.count))
