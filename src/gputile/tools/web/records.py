"""Defines the records of the page: nodes with GPUs and pods, pending pods, and changes.

Browsers may get the records of thousands of nodes, so fields with default values are omitted.
"""

from collections.abc import Mapping

import msgspec


class _Record(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    pass


class GpuTile(_Record, frozen=True):
    index: int
    total: int  # allocatable memory in MiB
    model: str = ""
    booked: int = 0  # booked memory in MiB
    percent: int = 0  # booked compute in percent
    pods: int = 0
    healthy: bool = True


class TileShare(_Record, frozen=True, array_like=True):
    index: int
    mib: int
    percent: int = 0  # of the GPU's compute, or 0 if compute is not divided


class MigCount(_Record, frozen=True, array_like=True):
    """The number of instances of a MIG profile that a pod requests or a node advertises."""

    profile: str
    count: int


class MigTile(_Record, frozen=True):
    """The numbers of a node's allocatable and booked MIG instances of one profile."""

    profile: str
    total: int
    booked: int = 0


class PodTile(_Record, frozen=True):
    """A pod on a node, with its shares of GPUs or its MIG instances."""

    namespace: str
    name: str
    shares: tuple[TileShare, ...] = ()
    workload: str = ""  # the name of the object that owns the pod, if one does
    whole: bool = False  # whether the pod has whole GPUs
    reserved: bool = False  # whether the GPUs are reserved for the pod, which is not bound yet
    created: int = 0  # Unix time in seconds, or 0 if unknown
    asked: int = 0  # the request in MiB, if the pod's GPUs are unknown
    problem: str = ""  # why the pod's GPUs are unknown
    instances: tuple[MigCount, ...] = ()


class NodeTile(_Record, frozen=True):
    """A node that has GPUs, MIG instances, booked pods or problems."""

    name: str
    mode: str = ""
    unit: int = 0  # the memory unit in MiB
    serves: str = ""  # what pods can request now: "memory", "gpus", "instances", or "" for nothing
    gpus: tuple[GpuTile, ...] = ()
    pods: tuple[PodTile, ...] = ()
    problems: tuple[str, ...] = ()  # each problem as a sentence
    taints: tuple[str, ...] = ()  # in kubectl's format
    silent: bool = False  # whether the node's agent has stopped reporting
    cordoned: bool = False
    replicas: int = 0  # the time slices of each whole GPU, or 0 without time-slicing
    instances: tuple[MigTile, ...] = ()


class PendingPod(_Record, frozen=True):
    """An unbound pod that requests GPUs."""

    namespace: str
    name: str
    asks: str  # the request in words
    created: int = 0
    gang: str = ""
    waits: str = ""  # why kube-scheduler does not try the pod yet, such as a scheduling gate
    workload: str = ""  # the name of the object that owns the pod, if one does


class PodUsage(_Record, frozen=True, array_like=True):
    """A pod's usage of GPUs. ``gpus`` maps the index of a measured GPU to memory in MiB."""

    mib: int | None  # the pod's memory on all of its GPUs, or None if unknown
    percent: int | None = None  # GPU time in percent of one GPU, or None if unknown
    gpus: Mapping[int, int] = {}


class NodeUsage(_Record, frozen=True):
    """The latest measurements by a node's agent."""

    pods: Mapping[str, PodUsage] = {}  # by namespace/name
    gpus: Mapping[int, int] = {}  # memory in use in MiB, by GPU index
    problem: str = ""  # why nothing was measured


class UsageSample(_Record, frozen=True, array_like=True):
    """A pod's usage at one time, in the units of ``PodUsage``."""

    at: int  # Unix time in seconds
    mib: int | None
    percent: int | None


class UsageAnswer(_Record, frozen=True):
    """The response of ``/api/usage``. If all usage is unknown, ``trouble`` says why."""

    trouble: str = ""
    nodes: dict[str, NodeUsage] = {}


class PodUsageAnswer(_Record, frozen=True):
    """The response of ``/api/pod-usage``: the usage now, the samples of one hour, and any error."""

    trouble: str = ""
    usage: PodUsage | None = None
    samples: list[UsageSample] = []


class PageContent(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The records that the page shows: nodes by name, pending pods by ``namespace/name``."""

    nodes: Mapping[str, NodeTile] = {}
    pending: Mapping[str, PendingPod] = {}


class FeedStatus(msgspec.Struct, frozen=True):
    """The state of the connection to the API server."""

    trouble: str = ""  # the error, or "" if the API server answers
    since: int = 0  # when the connection failed or recovered, Unix time in seconds


class PageAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The response of ``/api/state`` and ``/api/first``: the page's state at a revision.

    A browser may apply later changes to this state only if their stream has the same ``epoch``.
    The epoch identifies this process and the viewer's rights.
    """

    epoch: str
    revision: int  # the number of the latest change that the state includes
    cluster: str
    unit_mib: int
    status: FeedStatus
    nodes: list[NodeTile]
    pending: list[PendingPod]
    login: bool = False  # whether viewers must log in
    partial: bool = False  # whether this viewer may not see the names of all pods
    more: bool = False  # whether there are more nodes than this response contains


class Difference(_Record, frozen=True):
    """Changes of the page: new or changed records, and the keys of deleted records."""

    nodes: dict[str, NodeTile] = {}
    nodes_gone: tuple[str, ...] = ()
    pending: dict[str, PendingPod] = {}
    pending_gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.nodes_gone or self.pending or self.pending_gone)
