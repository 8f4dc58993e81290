"""The form of ``kind: Cluster``: what people type to describe a cluster, short enough to type.

What is not said is ample or usual: a node has 128 CPUs, 1 TiB of memory and room for 110 pods, and one with GPUs
has the taint ``nvidia.com/gpu:NoSchedule`` (``taints: []`` takes it away).
"""

from typing import Annotated, Literal

import msgspec

from gputile.api.core import Quantity, ResourceList
from gputile.api.well_known import Mode, Placement
from gputile.core.devices.inventory import MOST_GPUS

API_VERSION = "gputile.io/v1alpha1"
MOST_NODES = 20_000


class _Described(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What people type: an unknown field is an error, not a typo ignored."""


class GpuGroup(_Described, frozen=True, kw_only=True):
    """Equal GPUs. ``bandwidth`` is how they are linked, or a matrix in GB/s; ``unhealthy`` counts within the group."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)] = 1
    memory: str
    model: Annotated[str, msgspec.Meta(max_length=96)] = ""
    bandwidth: Literal["", "nvlink", "pcie"] | list[list[float]] = ""
    unhealthy: list[int] = []


class DescribedTaint(_Described, frozen=True, kw_only=True):
    """core/v1 Taint."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class DescribedNode(_Described, frozen=True, kw_only=True):
    """One node, or ``count`` equal ones called ``name``-1 and so on. No ``mode`` is a node without the label."""

    name: str
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)] | None = None
    address: str = ""
    mode: Mode | None = None
    placement: Placement | None = None
    gpus: GpuGroup | list[GpuGroup] = []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: list[DescribedTaint] | None = None
    unschedulable: bool = False
    cpu: Quantity = 128
    memory: Quantity = "1024GiB"
    pods: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 110
    resources: ResourceList = {}


class ClusterDescription(_Described, frozen=True, kw_only=True):
    """The whole description."""

    api_version: str
    kind: str
    gpu_memory_unit: str | None = None
    nodes: list[DescribedNode]
    metadata: dict[str, object] = {}
