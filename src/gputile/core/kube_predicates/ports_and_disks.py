"""Keeps two pods of a node off one host port and off one disk.

kube-scheduler's plugins NodePorts and VolumeRestrictions do the same.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gputile.api.core import PodSpec
from gputile.api.disks import DiskVolume
from gputile.core.refusal import PredicateRule, Refusal, refusal_by

ALL, READERS = "", "readers"
_ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - compared, and never listened on
_PORT: Final = "port"
_PORT_TAKEN: Final = refusal_by(PredicateRule.HOST_PORTS)
_DISK_TAKEN: Final = refusal_by(PredicateRule.DISK_TAKEN)


class Exclusive(NamedTuple):
    """A port or a disk of a node, and the part of it that a pod takes.

    That is ``ALL`` of it, one address of a port, or the place of one more of the ``READERS`` of a disk, who share it.
    """

    thing: tuple[str, ...]
    part: str

    @property
    def refusal(self) -> Refusal[PredicateRule]:
        return _PORT_TAKEN if self.thing[0] == _PORT else _DISK_TAKEN


def exclusives(spec: PodSpec) -> tuple[Exclusive, ...]:
    """Return the ports that the pod's containers and sidecars take of its node, and the disks that it names.

    The API server writes the ports of containers in the host's network as host ports, so no pod's network is read here.
    """
    sidecars = (each for each in spec.init_containers if each.ports and each.restart_policy == "Always")
    ports = (
        Exclusive(
            (_PORT, str(port.host_port), port.protocol or "TCP"),
            ALL if port.host_ip in ("", _ALL_ADDRESSES) else port.host_ip,
        )
        for container in (*sidecars, *spec.containers)
        for port in container.ports
    )
    return (*ports, *(disk for volume in spec.volumes for disk in _disks(volume)))


def _disks(volume: DiskVolume) -> Iterator[Exclusive]:
    """Yield the disk of a volume; one of Ceph is there for each of its monitors."""
    if (gce := volume.gce_persistent_disk) is not None:
        yield Exclusive(("gce", gce.pd_name), READERS if gce.read_only else ALL)
    if (aws := volume.aws_elastic_block_store) is not None:
        yield Exclusive(("aws", aws.volume_id), ALL)
    if (iscsi := volume.iscsi) is not None:
        yield Exclusive(("iscsi", iscsi.iqn), READERS if iscsi.read_only else ALL)
    if (rbd := volume.rbd) is not None:
        part = READERS if rbd.read_only else ALL
        yield from (Exclusive(("rbd", monitor, rbd.pool, rbd.image), part) for monitor in rbd.monitors)


class TakenExclusives:
    """What the pods of one node have; it is counted, as pods that no scheduler placed may share a part."""

    def __init__(self) -> None:
        self._parts: Counter[Exclusive] = Counter()
        self._things: Counter[tuple[str, ...]] = Counter()

    def counted(self, wanted: Iterable[Exclusive], sign: int) -> "TakenExclusives":
        """Return what is taken with a pod that came (1), or without one that went (-1)."""
        found = TakenExclusives()
        found._parts, found._things = self._parts.copy(), self._things.copy()
        for each in wanted:
            found._parts[each] += sign
            found._things[each.thing] += sign
            if not found._parts[each]:
                del found._parts[each]
            if not found._things[each.thing]:
                del found._things[each.thing]
        return found

    def conflicts(self, wanted: Iterable[Exclusive]) -> Iterator[Refusal[PredicateRule]]:
        """Yield a refusal for each of ``wanted`` that another pod has; two parts of a thing are no conflict."""
        for each in wanted:
            if each.thing not in self._things:
                continue
            taken = each in self._parts and each.part != READERS
            if taken or each.part == ALL or Exclusive(each.thing, ALL) in self._parts:
                yield each.refusal
