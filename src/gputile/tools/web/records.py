"""Defines the records of the page: nodes with GPUs and pods, pending pods, and changes.

They are sent to every browser for thousands of nodes, so fields with default values are omitted.
"""

from collections.abc import Mapping

import msgspec


class _Record(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    pass


class GpuTile(_Record, frozen=True):
    """A GPU: ``total`` allocatable and ``booked`` memory in MiB, ``percent`` of booked compute."""

    index: int
    total: int
    model: str = ""
    booked: int = 0
    percent: int = 0
    pods: int = 0
    healthy: bool = True


class TileShare(_Record, frozen=True, array_like=True):
    """A pod's share of GPU ``index``: MiB, and percent of compute (0 if compute is not divided)."""

    index: int
    mib: int
    percent: int = 0


class MigCount(_Record, frozen=True, array_like=True):
    """The number of MIG instances of a profile that a pod has or requests, or a node offers."""

    profile: str
    count: int


class MigTile(_Record, frozen=True):
    """A node's MIG instances of a profile: how many are allocatable, and how many are booked."""

    profile: str
    total: int
    booked: int = 0


class PodTile(_Record, frozen=True):
    """A pod on a node, with its shares of GPUs or its MIG ``instances``.

    ``created`` is Unix time in seconds, 0 if unknown. ``workload`` is the object that owns the pod,
    "" if none does. ``reserved``: the GPUs are reserved for a pod that is not bound yet.
    ``problem`` says why the pod's GPUs are unknown; ``asked`` is then its request in MiB.
    """

    namespace: str
    name: str
    shares: tuple[TileShare, ...] = ()
    workload: str = ""
    whole: bool = False
    reserved: bool = False
    created: int = 0
    asked: int = 0
    problem: str = ""
    instances: tuple[MigCount, ...] = ()


class NodeTile(_Record, frozen=True):
    """A node.

    ``serves`` is what pods can request there: "memory", "gpus", "instances", or "" for nothing now.
    ``unit`` is the memory unit in MiB. ``problems`` are sentences, ``taints`` as kubectl prints
    them. ``silent``: its agent no longer reports. ``replicas`` is the number of pods that
    time-slice each whole GPU, 0 without time-slicing.
    """

    name: str
    mode: str = ""
    unit: int = 0
    serves: str = ""
    gpus: tuple[GpuTile, ...] = ()
    pods: tuple[PodTile, ...] = ()
    problems: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    silent: bool = False
    cordoned: bool = False
    replicas: int = 0
    instances: tuple[MigTile, ...] = ()


class PendingPod(_Record, frozen=True):
    """An unbound pod that requests GPUs; ``asks`` is its request, ``workload`` its owner.

    ``waits`` is the reason why kube-scheduler does not try it yet, such as a scheduling gate.
    """

    namespace: str
    name: str
    asks: str
    created: int = 0
    gang: str = ""
    waits: str = ""
    workload: str = ""


class PodUsage(_Record, frozen=True, array_like=True):
    """A pod's use: MiB of GPU memory, and percent of one GPU's time; None if unknown.

    ``gpus`` is the memory in MiB by GPU index, for the GPUs on which it is measured.
    """

    mib: int | None
    percent: int | None = None
    gpus: Mapping[int, int] = {}


class NodeUsage(_Record, frozen=True):
    """Measurements of a node's agent: of pods by ``namespace/name``, and MiB in use by GPU index.

    ``problem`` is the reason why nothing was measured, "" if something was.
    """

    pods: Mapping[str, PodUsage] = {}
    gpus: Mapping[int, int] = {}
    problem: str = ""


class UsageSample(_Record, frozen=True, array_like=True):
    """A pod's use at a Unix time in seconds."""

    at: int
    mib: int | None
    percent: int | None


class UsageAnswer(_Record, frozen=True):
    """The response of ``/api/usage`` for the requested nodes; ``trouble`` is why use is unknown."""

    trouble: str = ""
    nodes: dict[str, NodeUsage] = {}


class PodUsageAnswer(_Record, frozen=True):
    """The response of ``/api/pod-usage``: samples of one hour, or why no use is known."""

    trouble: str = ""
    usage: PodUsage | None = None
    samples: list[UsageSample] = []


class PageContent(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What the page shows: nodes by name, and pending pods by ``namespace/name``."""

    nodes: Mapping[str, NodeTile] = {}
    pending: Mapping[str, PendingPod] = {}


class FeedStatus(msgspec.Struct, frozen=True):
    """The connection's state: ``trouble`` is its error or "", ``since`` Unix seconds."""

    trouble: str = ""
    since: int = 0


class PageAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The response of ``/api/state``: the page with the revision of its latest change.

    Changes apply to states of the same ``epoch``, which stands for this process and the viewer's
    rights. ``login``: viewers log in. ``partial``: this viewer may not see the names of all pods.
    ``more``: ``/api/first`` returned only the first of many nodes.
    """

    epoch: str
    revision: int
    cluster: str
    unit_mib: int
    status: FeedStatus
    nodes: list[NodeTile]
    pending: list[PendingPod]
    login: bool = False
    partial: bool = False
    more: bool = False


class Difference(_Record, frozen=True):
    """The difference between two pages: new and changed records, and the keys of deleted ones."""

    nodes: dict[str, NodeTile] = {}
    nodes_gone: tuple[str, ...] = ()
    pending: dict[str, PendingPod] = {}
    pending_gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.nodes_gone or self.pending or self.pending_gone)
