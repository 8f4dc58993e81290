"""Chooses the proxy that an environment names for an API server.

The rules are kubectl's, those of Go (golang.org/x/net/http/httpproxy). The standard library's ``proxy_bypass`` knows no
ranges of addresses in NO_PROXY, and would send what goes to the machine itself through a proxy.
"""

import ipaddress
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443}
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxy(NamedTuple):
    """A proxy's URL, and what names it: ``proxy-url``, or a variable of the environment."""

    url: str
    named_by: str


def environment_proxy(server: str, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for the URL ``server``, None where requests go directly."""
    url = urlsplit(server)
    variable = next((name for name in _spellings(f"{url.scheme}_proxy") if environ.get(name)), None)
    if variable is None:
        return None
    host = (url.hostname or "").lower()
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return None
    excepted = next((environ[name] for name in _spellings("no_proxy") if environ.get(name)), "")
    port = str(url.port or _PORTS[url.scheme])
    if any(_is_excepted(rule.strip().lower(), host, port, address) for rule in excepted.split(",")):
        return None
    proxy = environ[variable]
    return Proxy(proxy if "://" in proxy else f"http://{proxy}", variable)


def _spellings(variable: str) -> tuple[str, str]:
    return variable.upper(), variable


def _is_excepted(rule: str, server: str, server_port: str, server_address: _Address | None) -> bool:
    """Return whether an entry of NO_PROXY names a server: "*", a range, an address or a domain, these with a port."""
    if rule == "*":
        return True
    if "/" in rule:
        return _is_within(rule, server_address)
    host, port = _with_port(rule)
    if not host or port not in ("", server_port):
        return False
    if (address := _address(host)) is not None:
        return address == server_address
    domain = host.removeprefix("*") if host.startswith("*.") else host
    return server.endswith(domain if domain.startswith(".") else f".{domain}") or server == domain


def _is_within(network: str, address: _Address | None) -> bool:
    if address is None or not network.rpartition("/")[2].isdecimal():
        return False
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _with_port(rule: str) -> tuple[str, str]:
    """Return host and port of an entry, "" for none; an IPv6 address has brackets where it has a port."""
    if rule.startswith("["):
        host, _, port = rule[1:].partition("]")
        return host, port.removeprefix(":")
    if rule.count(":") > 1:
        return rule, ""
    host, _, port = rule.partition(":")
    return host, port


def _address(host: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
