"""Defines ``kind: Cluster``, by which people describe a cluster in a few lines.

Defaults are ample or usual: a node is an amd64 machine with Linux, with 128 CPUs, 1 TiB of memory, 1 TiB of disk (the
resource ephemeral-storage) and room for 110 pods, and one with GPUs has the taint ``nvidia.com/gpu:NoSchedule``
(``taints: []`` takes it away).
"""

from typing import Annotated, Any, Literal

import msgspec

from gputile.api.core import Quantity, ResourceList
from gputile.api.quantity import MemorySize
from gputile.api.well_known import Mode, Placement
from gputile.api.wording import described
from gputile.core.devices.inventory import MOST_GPUS

API_VERSION = "gputile.io/v1alpha1"
MOST_NODES = 20_000


class _DescriptionSection(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A part of a file that people write: an unknown field is an error, since it may be a typing mistake."""


class GpuGroup(_DescriptionSection, frozen=True, kw_only=True):
    """Equal GPUs. ``bandwidth`` is how they are linked, or a matrix in GB/s; ``unhealthy`` counts within the group."""

    count: Annotated[int, described("How many GPUs.", ge=1, le=MOST_GPUS)] = 1
    memory: Annotated[MemorySize, described("Memory of each, as 15GiB.")]
    model: Annotated[str, described("Their model, as nvidia-smi prints it.", max_length=96)] = ""
    bandwidth: Annotated[
        Literal["", "nvlink", "pcie"] | list[list[float]], described("How they are linked, or a matrix in GB/s.")
    ] = ""
    unhealthy: Annotated[list[int], described("Which of them are unhealthy, counted within the group from 0.")] = []


class DescribedTaint(_DescriptionSection, frozen=True, kw_only=True):
    """core/v1 Taint."""

    key: Annotated[str, described("The taint's key.")]
    value: Annotated[str, described("The taint's value.")] = ""
    effect: Annotated[str, described("NoSchedule, PreferNoSchedule or NoExecute.")] = "NoSchedule"


class DescribedNode(_DescriptionSection, frozen=True, kw_only=True):
    """One node, or ``count`` equal ones called ``name``-1 and so on. No ``mode`` is a node without the label."""

    name: Annotated[str, described("The node's name; of several, what their names begin with.")]
    count: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)] | None,
        described("How many equal nodes: NAME-1 and so on; absent: one, called NAME."),
    ] = None
    address: Annotated[str, described("The node's address.")] = ""
    mode: Annotated[Mode | None, described("The node mode; absent: the node has no label of it.")] = None
    placement: Annotated[
        Placement | None, described("The label ack.node.gpu.placement; absent: the node has none.")
    ] = None
    gpus: Annotated[GpuGroup | list[GpuGroup], described("Its GPUs, or groups of equal ones.")] = []
    labels: Annotated[
        dict[str, str],
        described("Further labels; kubernetes.io/os is linux, and kubernetes.io/arch amd64, unless named."),
    ] = {}
    annotations: Annotated[dict[str, str], described("Further annotations.")] = {}
    taints: Annotated[
        list[DescribedTaint] | None, described("Its taints; absent: a node with GPUs has nvidia.com/gpu:NoSchedule.")
    ] = None
    unschedulable: Annotated[bool, described("Whether it is cordoned.")] = False
    cpu: Annotated[Quantity, described("Its CPUs, as a Kubernetes quantity.")] = 128
    memory: Annotated[Quantity, described("Its memory, as a Kubernetes quantity or as 128GiB.")] = "1024GiB"
    pods: Annotated[int, described("How many pods it takes.", ge=0, le=100_000)] = 110
    resources: Annotated[ResourceList, described("Further resources, as Kubernetes quantities.")] = {}


class ClusterDescription(_DescriptionSection, frozen=True, kw_only=True):
    """The whole description."""

    api_version: Annotated[Literal["gputile.io/v1alpha1"], described("The version of this file.")]
    kind: Annotated[Literal["Cluster"], described("What this file is.")]
    gpu_memory_unit: Annotated[
        MemorySize | None, described("The cluster's memory unit, as 128MiB; absent: the configuration's.")
    ] = None
    nodes: Annotated[list[DescribedNode], described("Its nodes.")]
    metadata: Annotated[dict[str, Any], described("A name and what else one likes; not read.")] = {}
