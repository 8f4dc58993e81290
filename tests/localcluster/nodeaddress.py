"""An address for a node on this machine: the kubelet takes no loopback address, so lo gets another one."""

import fcntl
import hashlib
import ipaddress
import socket
import struct

# linux/sockios.h; an interface name with a label, as lo:label, makes or names an alias.
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
RANGE = ipaddress.ip_network("198.18.0.0/15")  # RFC 2544: for tests, routed nowhere
LONGEST_LABEL = 12  # an interface name has at most 15 characters


def address_of(label: str) -> str:
    """Return the address that goes with a label."""
    number = int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "big")
    return str(RANGE[1 + number % (RANGE.num_addresses - 2)])


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
