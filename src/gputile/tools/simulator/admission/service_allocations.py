"""Finds Services that want an address or a node port which another one has: each is given once.

Addresses and ports are the cluster's, whatever the namespace and the protocol. One Service may have a port of several
protocols. Services are applied one after the other, so one that gives a port up before another one wants it is no
obstacle.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gputile.api.workloads import ListedService
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError
from gputile.tools.simulator.rules.values.addresses import parse_address

_Place = tuple[str, str]  # namespace and name
_Holder = tuple[_Place, bool]  # a Service, and whether it has a port for its health checks
_Port = tuple[int, str]  # number and protocol
_OF_HEALTH: Final = "spec.healthCheckNodePort"
_OPENING: Final = ("LoadBalancer", "NodePort")


def names_an_allocation(manifest: Manifest) -> bool:
    """Return whether an object is a Service that wants a certain address or node port."""
    spec = manifest.body.get("spec")
    if (manifest.kind, manifest.api_version) != ("Service", "v1") or not isinstance(spec, dict):
        return False
    ports = spec.get("ports")
    opened = (each.get("nodePort") for each in ports if isinstance(each, dict)) if isinstance(ports, list) else ()
    return bool(any(opened) or any(spec.get(each) for each in ("clusterIP", "clusterIPs", "healthCheckNodePort")))


def allocated_twice(manifests: Iterable[Manifest], there: Iterable[ListedService] = ()) -> Iterator[ManifestError]:
    """Yield which fields of the Services among valid ``manifests`` want what another has, also one of ``there``."""
    live = {(each.metadata.namespace, each.metadata.name): each for each in there}
    had = {wanted: (place, health) for place, each in live.items() for wanted, health in _held(each)}
    for i, each in enumerate(manifests):
        if (each.kind, each.api_version) != ("Service", "v1"):
            continue
        metadata, spec = each.body["metadata"], each.body.get("spec") or {}
        place = str(metadata.get("namespace") or "default"), metadata.get("name") or f"#{i}"  # a generated name is new
        if place in live:
            _give_up(had, place, live[place], spec)
        for path, wanted in _wanted(spec):
            holder = place, path == _OF_HEALTH  # a Service's own ports share a number by their protocols
            other = had.setdefault(wanted, holder)
            if other != holder:
                kind = "port" if isinstance(wanted, int) else "IP"
                by = f" by the cluster's Service {'/'.join(other[0])}" if other[0] in live else ""
                yield each.origin.error(path, f"Invalid value: {wanted}: provided {kind} is already allocated{by}")


def _held(service: ListedService) -> Iterator[tuple[str | int, bool]]:
    """Yield each address and node port that a Service of the cluster has, and whether it is for its health checks."""
    spec = service.spec
    yield from ((port.node_port, False) for port in spec.ports if port.node_port)
    if spec.health_check_node_port:
        yield spec.health_check_node_port, True
    yield from ((_plain(each), False) for each in spec.cluster_ips or [spec.cluster_ip] if each not in ("", "None"))


def _give_up(had: dict[str | int, _Holder], place: _Place, known: ListedService, spec: Mapping[str, Any]) -> None:
    """Take away the node ports that a Service of the cluster has no more once it is as its file says."""
    opened = (spec.get("type") or "ClusterIP") in _OPENING
    kept = {_port(each) for each in spec.get("ports") or () if opened and not each.get("nodePort")}
    for port in known.spec.ports:
        if had.get(port.node_port) == (place, False) and (port.port, port.protocol) not in kept:
            del had[port.node_port]


def _port(written: Mapping[str, Any]) -> _Port:
    return written["port"], written.get("protocol") or "TCP"


def _wanted(spec: Mapping[str, Any]) -> Iterator[tuple[str, str | int]]:
    """Yield the field and the value of each address and node port that a Service names."""
    for i, port in enumerate(spec.get("ports") or ()):
        if number := port.get("nodePort"):
            yield f"spec.ports[{i}].nodePort", number
    if number := spec.get("healthCheckNodePort"):
        yield _OF_HEALTH, number
    addresses = spec.get("clusterIPs") or [spec.get("clusterIP", "")]
    for i, address in enumerate(addresses):
        if address and address != "None":
            yield f"spec.clusterIPs[{i}]", _plain(address)


def _plain(address: str) -> str:
    """Return an address as all who write it in another form mean it."""
    return str(parse_address(address) or address)
