"""Selects the proxy for requests to the API server from the environment, as kubectl does.

The proxy variables follow the rules of Go (golang.org/x/net/http/httpproxy). Python's
``proxy_bypass`` ignores CIDR ranges in NO_PROXY, and would send requests to localhost through a
proxy.
"""

import ipaddress
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443}
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxy(NamedTuple):
    """The URL of a proxy, and the setting that contains the URL."""

    url: str
    named_by: str  # an environment variable, or the ``proxy-url`` of a cluster


def is_http_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        if not (text.isprintable() and url.scheme in ("http", "https") and url.hostname):
            return False
        url.hostname.encode("idna")
        return url.port != 0
    # The port is out of range, a bracket is not closed, or a label is empty or too long.
    except ValueError:
        return False


def environment_proxy(server: str, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that the environment sets for the URL ``server``, or None for no proxy."""
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
    """Return whether ``rule`` of NO_PROXY ("*", a CIDR range, or a host) matches the server."""
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
    """Split an entry such as ``[::1]:80`` into host and port. The port may be empty."""
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
