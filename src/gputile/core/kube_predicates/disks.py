"""Keeps two pods of a node off one disk, as kube-scheduler's plugin VolumeRestrictions does."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gputile.api.core import PodSpec
from gputile.api.disks import DiskVolume
from gputile.core.kube_predicates.predicate_refusal import PredicateRefusal, PredicateRule

DISK_TAKEN: Final = PredicateRefusal(PredicateRule.DISK_TAKEN)


class Disk(NamedTuple):
    """A disk; ``name`` tells those of a ``kind`` apart. Pods that only read it can share it."""

    kind: str
    name: tuple[str, ...]
    shared: bool


def disks(spec: PodSpec) -> tuple[Disk, ...]:
    """Return the disks that the pod names; one of Ceph is there for each of its monitors."""
    return tuple(disk for volume in spec.volumes for disk in _disks(volume))


def _disks(volume: DiskVolume) -> Iterator[Disk]:
    if (gce := volume.gce_persistent_disk) is not None:
        yield Disk("gce", (gce.pd_name,), gce.read_only)
    if (aws := volume.aws_elastic_block_store) is not None:
        yield Disk("aws", (aws.volume_id,), False)
    if (iscsi := volume.iscsi) is not None:
        yield Disk("iscsi", (iscsi.iqn,), iscsi.read_only)
    if (rbd := volume.rbd) is not None:
        yield from (Disk("rbd", (monitor, rbd.pool, rbd.image), rbd.read_only) for monitor in rbd.monitors)


class AttachedDisks:
    """The disks of the pods of one node."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, tuple[str, ...]], list[bool]] = {}

    def count(self, attached: Iterable[Disk], sign: int) -> None:
        """Take notice of the disks of a pod that came (1), or went (-1)."""
        for kind, name, shared in attached:
            pods = self._pods.setdefault((kind, name), [])
            if sign > 0:
                pods.append(shared)
                continue
            pods.remove(shared)
            if not pods:
                del self._pods[kind, name]

    def conflict(self, wanted: Iterable[Disk]) -> bool:
        """Return whether a pod has one of the disks, except for those that all only read."""
        return any(
            not (shared and all(pods))
            for kind, name, shared in wanted
            if (pods := self._pods.get((kind, name))) is not None
        )
