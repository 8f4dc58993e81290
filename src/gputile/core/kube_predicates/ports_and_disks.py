"""Keeps two pods of a node off one host port and off one disk.

kube-scheduler's plugins NodePorts and VolumeRestrictions do the same.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gputile.api.core import PodSpec
from gputile.api.disks import DiskVolume
from gputile.core.refusal import PredicateRule, refusal_by

HOST_PORTS: Final = refusal_by(PredicateRule.HOST_PORTS)
_ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - compared, and never listened on


class HostPort(NamedTuple):
    """A port of a node, at one of its addresses or at all of them."""

    number: int
    protocol: str
    address: str


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """Return the ports that the pod's containers and sidecars take of its node.

    The API server writes the ports of containers in the host's network as host ports, so no pod's network is read here.
    """
    sidecars = (each for each in spec.init_containers if each.ports and each.restart_policy == "Always")
    return tuple(
        HostPort(port.host_port, port.protocol or "TCP", port.host_ip or _ALL_ADDRESSES)
        for container in (*sidecars, *spec.containers)
        for port in container.ports
    )


class TakenPorts:
    """The ports of one node that pods have; each is counted, as pods that no scheduler placed may share one."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[int, str], Counter[str]] = {}

    def counted(self, ports: Iterable[HostPort], sign: int) -> "TakenPorts":
        """Return the ports with those of a pod that came (1), or without those of one that went (-1)."""
        found = TakenPorts()
        found._addresses = {port: taken.copy() for port, taken in self._addresses.items()}
        for number, protocol, address in ports:
            taken = found._addresses.setdefault((number, protocol), Counter())
            taken[address] += sign
            if not taken[address]:
                del taken[address]
            if not taken:
                del found._addresses[number, protocol]
        return found

    def conflict(self, ports: Iterable[HostPort]) -> bool:
        """Return whether one of ``ports`` is taken; a port at all addresses is taken by one at any of them."""
        for number, protocol, address in ports:
            taken = self._addresses.get((number, protocol))
            if taken and (address == _ALL_ADDRESSES or _ALL_ADDRESSES in taken or address in taken):
                return True
        return False


DISK_TAKEN: Final = refusal_by(PredicateRule.DISK_TAKEN)


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

    def counted(self, attached: Iterable[Disk], sign: int) -> "AttachedDisks":
        """Return the disks with those of a pod that came (1), or without those of one that went (-1)."""
        found = AttachedDisks()
        found._pods = {disk: pods.copy() for disk, pods in self._pods.items()}
        for kind, name, shared in attached:
            pods = found._pods.setdefault((kind, name), [])
            if sign > 0:
                pods.append(shared)
                continue
            pods.remove(shared)
            if not pods:
                del found._pods[kind, name]
        return found

    def conflict(self, wanted: Iterable[Disk]) -> bool:
        """Return whether a pod has one of the disks, except for those that all only read."""
        return any(
            not (shared and all(pods))
            for kind, name, shared in wanted
            if (pods := self._pods.get((kind, name))) is not None
        )
