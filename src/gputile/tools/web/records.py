"""Defines the records of the page: nodes with GPUs and pods, pods that wait, and what has changed.

They go to every browser that looks, for thousands of nodes, so fields with their usual values are left out.
"""

from collections.abc import Mapping

import msgspec


class _Record(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    pass


class GpuTile(_Record, frozen=True):
    """One GPU. ``total`` is MiB that can be given away, ``booked`` those that are booked; ``percent`` is of compute."""

    index: int
    total: int
    model: str = ""
    booked: int = 0
    percent: int = 0
    pods: int = 0
    healthy: bool = True


class TileShare(_Record, frozen=True, array_like=True):
    """What a pod takes of the GPU ``index``: MiB, and percent of compute (0 where compute is not divided)."""

    index: int
    mib: int
    percent: int = 0


class MigCount(_Record, frozen=True, array_like=True):
    """How many MIG instances of a profile a pod has or asks for, or a node offers."""

    profile: str
    count: int


class MigTile(_Record, frozen=True):
    """The MIG instances of a profile on a node: how many pods may have, and how many they have."""

    profile: str
    total: int
    booked: int = 0


class PodTile(_Record, frozen=True):
    """A pod on a node: its shares, and when it was created, Unix time in seconds (0 where that is not known).

    ``workload`` is the object that it comes from, "" where it comes from none.

    ``reserved``: the GPUs are kept for a pod of a gang, and it is not bound yet. ``problem`` says why its GPUs are not
    known; ``asked`` is then what it asks for, MiB. ``instances`` are the MIG instances that it has.
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
    """A node. ``serves`` is what pods may ask of it: "memory", "gpus", "instances", or "" for nothing now.

    ``unit`` is the memory unit in MiB. ``problems`` say what is wrong, ``taints`` are as kubectl writes them,
    ``silent`` whether its agent is. ``replicas`` is how many pods have each whole GPU in turns, 0 for one alone.
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
    """A pod that asks for GPUs and is on no node. ``asks`` is what for, ``workload`` the object that it comes from.

    ``waits`` is what keeps it from being tried.
    """

    namespace: str
    name: str
    asks: str
    created: int = 0
    gang: str = ""
    waits: str = ""
    workload: str = ""


class PodUsage(_Record, frozen=True, array_like=True):
    """What a pod uses: MiB of GPUs' memory, and percent of one GPU's time; None where that is not known.

    ``gpus`` is the memory by GPU index, MiB, of the GPUs on which it is measured.
    """

    mib: int | None
    percent: int | None = None
    gpus: Mapping[int, int] = {}


class NodeUsage(_Record, frozen=True):
    """What a node's agent measured: of pods by ``namespace/name``, and MiB in use by GPU index.

    ``problem`` is why nothing was measured, "" where it was.
    """

    pods: Mapping[str, PodUsage] = {}
    gpus: Mapping[int, int] = {}
    problem: str = ""


class UsageSample(_Record, frozen=True, array_like=True):
    """What a pod used at a time, Unix time in seconds."""

    at: int
    mib: int | None
    percent: int | None


class UsageAnswer(_Record, frozen=True):
    """``/api/usage``: what is known of the nodes that were asked for; ``trouble`` is why nothing can be known."""

    trouble: str = ""
    nodes: dict[str, NodeUsage] = {}


class PodUsageAnswer(_Record, frozen=True):
    """``/api/pod-usage``: what a pod uses, and has used within the last hour; ``trouble`` is why it is not known."""

    trouble: str = ""
    usage: PodUsage | None = None
    samples: list[UsageSample] = []


class PageContent(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """All that the page shows: nodes by name, and pending pods by ``namespace/name``."""

    nodes: Mapping[str, NodeTile] = {}
    pending: Mapping[str, PendingPod] = {}


class FeedStatus(msgspec.Struct, frozen=True):
    """Whether the cluster answers: ``trouble`` is why not, "" where it does, ``since`` Unix time in seconds."""

    trouble: str = ""
    since: int = 0


class PageAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """``/api/state``: the page, and the number of the change that it has last. ``epoch`` is of this server, and of what
    the viewer may see.

    ``login`` is whether viewers log in, ``partial`` whether this one may not know the names of all pods. ``more`` is
    whether this is only what fills a screen, as ``/api/first`` answers where there are more nodes than that.
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
    """What has changed from one page to another: what is new or other, and the keys of what is gone."""

    nodes: dict[str, NodeTile] = {}
    nodes_gone: tuple[str, ...] = ()
    pending: dict[str, PendingPod] = {}
    pending_gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.nodes_gone or self.pending or self.pending_gone)


def applied(page: PageContent, difference: Difference) -> PageContent:
    """Return the page after a difference, as a browser makes it."""
    nodes = {**page.nodes, **difference.nodes}
    pending = {**page.pending, **difference.pending}
    for name in difference.nodes_gone:
        nodes.pop(name, None)
    for key in difference.pending_gone:
        pending.pop(key, None)
    return PageContent(nodes, pending)
