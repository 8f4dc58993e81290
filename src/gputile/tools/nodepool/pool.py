"""A GPU node pool as people describe it: ``kind: NodePool``."""

from typing import Annotated, Final, Literal, get_args

import msgspec

from gputile.api.misfit import RULE
from gputile.api.quantity import parse_mib
from gputile.api.well_known import Mode, Placement
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


class _Described(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What people type: an unknown field is an error, not a typo ignored."""


class Gpus(_Described, frozen=True, kw_only=True):
    """The GPUs of one node. ``memory`` is what ``nvidia-smi --query-gpu=memory.total`` prints, such as 23028MiB."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)] = 1
    memory: str
    model: Annotated[str, msgspec.Meta(max_length=96)] = ""


class NodePool(_Described, frozen=True, kw_only=True):
    """A pool of equal GPU nodes.

    ``location`` is the region (EKS) or the location (GKE), ``resource_group`` AKS's. ``accelerator`` is GKE's name of
    the GPU, such as nvidia-l4. ``autoscaler`` is who adds nodes.
    """

    api_version: Literal["gputile.io/v1alpha1"] = "gputile.io/v1alpha1"
    kind: Literal["NodePool"] = "NodePool"
    provider: Literal["eks", "aks", "gke"]
    way: str
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9-]{0,38}[a-z0-9]$", extra={RULE: _NAME_RULE})]
    cluster: Annotated[str, msgspec.Meta(min_length=1)]
    location: str = ""
    resource_group: str = ""
    instance_type: Annotated[str, msgspec.Meta(min_length=1)]
    accelerator: str = ""
    gpus: Gpus
    min_nodes: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    max_nodes: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    mode: Mode = Mode.EXCLUSIVE
    placement: Placement | None = None
    gpu_memory_unit: str = "1GiB"
    autoscaler: Autoscaler = "cluster-autoscaler"
    labels: dict[str, str] = {}

    @property
    def unit_mib(self) -> int:
        """The memory unit in MiB."""
        return parse_mib(self.gpu_memory_unit)

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """The GPUs of a node, as its agent will report them."""
        mib = parse_mib(self.gpus.memory)
        return tuple(Gpu(index=i, uuid=f"GPU-{i}", mib=mib, model=self.gpus.model) for i in range(self.gpus.count))
