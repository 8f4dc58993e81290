"""Free ports on the loopback address."""

import contextlib
import itertools
import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
_FIRST = 10_300  # above Kubernetes' own
_ENOUGH = 1000


def _range() -> range:
    """Return the ports below those that outgoing connections get: one of these could be taken before it is used."""
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    low, high = int(outgoing[0]), int(outgoing[1])
    around = max(range(_FIRST, low), range(high + 1, 65_536), key=len)
    return around if len(around) >= _ENOUGH else range(_FIRST, 65_536)


def _candidates() -> "itertools.cycle[int]":
    ports = _range()
    begin = random.SystemRandom().randrange(len(ports))  # elsewhere than other test runs on this machine
    return itertools.cycle([*ports[begin:], *ports[:begin]])


_next = _candidates()


def free_ports(count: int) -> list[int]:
    """Return ``count`` ports that nothing has on any address, and that no call returned a short time ago."""
    found: list[int] = []
    while len(found) < count:
        port = next(_next)
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", port))
            found.append(port)
    return found


def accepts(port: int) -> bool:
    """Whether something listens on a loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
