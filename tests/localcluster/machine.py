"""What tests take of this machine and give back: directories, ports, control groups and addresses for nodes."""

import contextlib
import fcntl
import hashlib
import ipaddress
import itertools
import os
import random
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

PREFIX = "gputile-controlplane-"
LOCK = "lock"
LOOPBACK = "127.0.0.1"
_FIRST = 10_300  # above Kubernetes' own
_ENOUGH = 1000
CGROUPS = Path("/sys/fs/cgroup")
GONE_WITHIN_S = 60.0
# linux/sockios.h; an interface name with a label, as lo:label, makes or names an alias.
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
NODE_ADDRESSES = ipaddress.ip_network("198.18.0.0/15")  # RFC 2544: for tests, routed nowhere
LONGEST_LABEL = 12  # an interface name has at most 15 characters


class Scratch:
    """A new temporary directory. A lock on a file in it, which ends with the process, tells that it is in use.

    ``prefix`` begins its name, and those of the abandoned ones to remove; ``undo`` takes back what was done outside of
    such a directory, which goes by its name.
    """

    def __init__(self, prefix: str = PREFIX, undo: Callable[[Path], None] = lambda _: None) -> None:
        self._undo = undo
        remove_abandoned(prefix, undo)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        unlocked = self.path / f"{LOCK}.new"
        self._lock = unlocked.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / LOCK)  # so that nobody ever finds it under its name without an owner

    def remove(self) -> None:
        """Remove the directory and all in it."""
        self._undo(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_abandoned(prefix: str = PREFIX, undo: Callable[[Path], None] = lambda _: None) -> None:
    """Remove the directories of runs that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*/{LOCK}"):
        with contextlib.suppress(OSError), path.open() as lock:
            if _unowned(lock):
                undo(path.parent)
                shutil.rmtree(path.parent, ignore_errors=True)


def _unowned(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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


def make_cgroups(name: str) -> None:
    """Make the control group ``name`` everywhere.

    Raises:
        OSError: this machine does not let us.
    """
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)


def remove_cgroups(name: str) -> None:
    """Remove ``name`` with all below it; the last processes in it may be dying still."""
    deadline = time.monotonic() + GONE_WITHIN_S
    for hierarchy in _hierarchies():
        top = hierarchy / name
        while top.exists():
            for path, _, _ in os.walk(top, topdown=False):  # takes no offence at what is gone already
                with contextlib.suppress(OSError):
                    Path(path).rmdir()
            if time.monotonic() > deadline:
                break
            time.sleep(0.02 if top.exists() else 0)


def _hierarchies() -> list[Path]:
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in sorted(CGROUPS.iterdir()) if (path / "cgroup.procs").exists() and not path.is_symlink()]


def address_of(label: str) -> str:
    """Return the address that goes with a label."""
    number = int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "big")
    return str(NODE_ADDRESSES[1 + number % (NODE_ADDRESSES.num_addresses - 2)])


def add_address(label: str) -> str:
    """Give lo the address of ``label``, and return it."""
    address = address_of(label)
    _set(label, SIOCSIFADDR, _ip(address))
    _set(label, SIOCSIFNETMASK, _ip("255.255.255.255"))
    return address


def remove_address(label: str) -> None:
    """Take the address of ``label`` from lo; do nothing where it is not there."""
    try:
        _set(label, SIOCSIFFLAGS, struct.pack("h", 0))
    except OSError:
        return


def _set(label: str, request: int, value: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, request, struct.pack("16s24s", f"lo:{label[:LONGEST_LABEL]}".encode(), value))


def _ip(address: str) -> bytes:
    return struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(address))
