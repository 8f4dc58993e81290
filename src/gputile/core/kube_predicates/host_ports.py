"""Lets no two pods of a node have one port, as kube-scheduler's plugin NodePorts does."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from gputile.api.core import PodSpec
from gputile.core.kube_predicates.predicate_refusal import PredicateRefusal, PredicateRule

HOST_PORTS: Final = PredicateRefusal(PredicateRule.HOST_PORTS)
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

    def count(self, ports: Iterable[HostPort], sign: int) -> None:
        """Take notice of the ports of a pod that came (1), or went (-1)."""
        for number, protocol, address in ports:
            taken = self._addresses.setdefault((number, protocol), Counter())
            taken[address] += sign
            if not taken[address]:
                del taken[address]
            if not taken:
                del self._addresses[number, protocol]

    def conflict(self, ports: Iterable[HostPort]) -> bool:
        """Return whether one of ``ports`` is taken; a port at all addresses is taken by one at any of them."""
        for number, protocol, address in ports:
            taken = self._addresses.get((number, protocol))
            if taken and (address == _ALL_ADDRESSES or _ALL_ADDRESSES in taken or address in taken):
                return True
        return False
