"""Defines the format of ``kind: Cluster``, a short description of a cluster.

By default, a node is an amd64 machine with Linux, 128 CPUs, 1 TiB of memory, 1 TiB of ephemeral
storage and capacity for 110 pods. A node with GPUs has the taint ``nvidia.com/gpu:NoSchedule``
unless ``taints`` are given, which may be empty.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from gputile.api.core import Quantity, ResourceList
from gputile.api.quantity import MemorySize
from gputile.api.well_known import Mode, Placement
from gputile.api.wording import described
from gputile.core.devices.inventory import MOST_GPUS

API_VERSION: Final = "gputile.io/v1alpha1"
MOST_NODES: Final = 20_000


class _DescriptionSection(
    msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True
):
    """A section of the description. An unknown field is an error, because it may be a typo."""


class GpuGroup(_DescriptionSection, frozen=True, kw_only=True):
    """A group of equal GPUs of a node."""

    count: Annotated[int, described("The number of GPUs in the group.", ge=1, le=MOST_GPUS)] = 1
    memory: Annotated[MemorySize, described("Memory of each GPU, such as 15GiB.")]
    model: Annotated[
        str, described("The model of the GPUs, as nvidia-smi prints it.", max_length=96)
    ] = ""
    bandwidth: Annotated[
        Literal["", "nvlink", "pcie"] | list[list[float]],
        described("The kind of link between the GPUs, or a matrix of bandwidths in GB/s."),
    ] = ""
    unhealthy: Annotated[
        list[int], described("The unhealthy GPUs, by their positions in this group from 0.")
    ] = []


class DescribedTaint(_DescriptionSection, frozen=True, kw_only=True):
    """A taint, with the fields of ``Taint`` in core/v1."""

    key: Annotated[str, described("The taint's key.", min_length=1)]
    value: Annotated[str, described("The taint's value.")] = ""
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"], described("The taint's effect.")
    ] = "NoSchedule"


class DescribedNode(_DescriptionSection, frozen=True, kw_only=True):
    """One node, or ``count`` equal nodes."""

    name: Annotated[str, described("The node's name, or with count the prefix of the names.")]
    count: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)] | None,
        described(
            "The number of equal nodes, whose names are NAME-1, NAME-2 and so on. If absent, there "
            "is one node with the name NAME."
        ),
    ] = None
    address: Annotated[str, described("The node's internal IP address.")] = ""
    mode: Annotated[
        Mode | None,
        described(
            "The value of the label ack.node.gpu.schedule. If absent, the node does not have the "
            "label."
        ),
    ] = None
    placement: Annotated[
        Placement | None,
        described(
            "The value of the label ack.node.gpu.placement. If absent, the node does not have the "
            "label."
        ),
    ] = None
    gpus: Annotated[
        GpuGroup | list[GpuGroup],
        described("The GPUs of the node: a group of equal GPUs, or a list of groups."),
    ] = []
    labels: Annotated[
        dict[str, str],
        described(
            "Other labels. The defaults of kubernetes.io/os and kubernetes.io/arch are linux and "
            "amd64."
        ),
    ] = {}
    annotations: Annotated[dict[str, str], described("Annotations of the node.")] = {}
    taints: Annotated[
        list[DescribedTaint] | None,
        described("Taints of the node. If absent, a node with GPUs has nvidia.com/gpu:NoSchedule."),
    ] = None
    unschedulable: Annotated[bool, described("Whether the node is cordoned.")] = False
    cpu: Annotated[Quantity, described("Allocatable CPU, as a Kubernetes quantity.")] = 128
    memory: Annotated[
        Quantity, described("Allocatable memory, as a Kubernetes quantity or in GiB, as 128GiB.")
    ] = "1024GiB"
    pods: Annotated[int, described("The largest number of pods on the node.", ge=0, le=100_000)] = (
        110
    )
    resources: Annotated[
        ResourceList, described("Other allocatable resources, as Kubernetes quantities.")
    ] = {}


class ClusterDescription(_DescriptionSection, frozen=True, kw_only=True):
    """The description of a cluster."""

    api_version: Annotated[
        Literal["gputile.io/v1alpha1"], described("The version of the format of this file.")
    ]
    kind: Annotated[Literal["Cluster"], described("The kind of this file.")]
    gpu_memory_unit: Annotated[
        MemorySize | None,
        described("The cluster's memory unit, such as 128MiB. The default is the configured unit."),
    ] = None
    nodes: Annotated[list[DescribedNode], described("The nodes of the cluster.")]
    metadata: Annotated[
        dict[str, Any], described("The metadata of the file, which gputile ignores.")
    ] = {}
