"""Checks addresses and ranges of addresses as the API server does."""

import ipaddress
from typing import Final

from gputile.api.wording import shown

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Range = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOCAL_MULTICAST: Final = (ipaddress.ip_network("224.0.0.0/24"), ipaddress.ip_network("ff02::/16"))


def parse_address(text: str) -> Address | None:
    """Return the address that ``text`` is, None where it is none; IPv4 within IPv6 and zones are not taken."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    within = isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.scope_id)
    return None if within else address


def parse_range(text: str) -> Range | None:
    """Return the range of addresses that ``text`` is, as 10.0.0.0/8; None where it is none."""
    address, slash, bits = text.partition("/")
    if not slash or parse_address(address) is None or not bits.isdecimal() or bits != str(int(bits[:4])):
        return None
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def broken_address(text: str) -> str | None:
    """Return why ``text`` is no address; None where it is one."""
    return no_address(text) if parse_address(text) is None else None


def no_address(text: str) -> str:
    """Return what is said of a text that is no address."""
    return f"Invalid value: {shown(text)}: must be an IP address, such as 10.9.8.7 or 2001:db8::ffff"


def broken_range(text: str) -> str | None:
    """Return why ``text`` is no range of addresses; None where it is one."""
    return no_range(text) if parse_range(text) is None else None


def no_range(text: str) -> str:
    """Return what is said of a text that is no range of addresses."""
    return f"Invalid value: {shown(text)}: must be a range of addresses, such as 10.9.8.0/24 or 2001:db8::/64"


def broken_endpoint(text: str) -> str | None:
    """Return why traffic from outside cannot come in at ``text``; None where it can."""
    address = parse_address(text)
    if address is None:
        return no_address(text)
    if address.is_unspecified or address.is_loopback or address.is_link_local or _is_local_multicast(address):
        return f"Invalid value: {shown(text)}: may not be unspecified, or in the loopback or link-local range"
    return None


def _is_local_multicast(address: Address) -> bool:
    return any(address in each for each in _LOCAL_MULTICAST)
