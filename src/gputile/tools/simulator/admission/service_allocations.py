"""Finds two Services that want one address or one node port, which an API server gives only once.

Addresses and ports are the cluster's, whatever the namespace and the protocol. One Service may have a port of several
protocols.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from gputile.tools.simulator.documents.manifests import Manifest, ManifestError

_OF_HEALTH: Final = "spec.healthCheckNodePort"


def allocated_twice(manifests: Iterable[Manifest]) -> Iterator[ManifestError]:
    """Yield which fields of the Services among valid ``manifests`` want what another one of them has."""
    had: dict[str | int, tuple[object, bool]] = {}
    for each in manifests:
        if (each.kind, each.api_version) != ("Service", "v1"):
            continue
        metadata = each.body["metadata"]
        service = metadata.get("namespace"), metadata.get("name") or id(each)  # a generated name is a new one
        for path, wanted in _wanted(each.body.get("spec") or {}):
            holder = service, path == _OF_HEALTH  # a Service's own ports share a number by their protocols
            if had.setdefault(wanted, holder) != holder:
                kind = "port" if isinstance(wanted, int) else "IP"
                yield each.origin.error(path, f"Invalid value: {wanted}: provided {kind} is already allocated")


def _wanted(spec: dict[str, Any]) -> Iterator[tuple[str, str | int]]:
    """Yield the field and the value of each address and node port that a Service names."""
    for i, port in enumerate(spec.get("ports") or ()):
        if number := port.get("nodePort"):
            yield f"spec.ports[{i}].nodePort", number
    if number := spec.get("healthCheckNodePort"):
        yield _OF_HEALTH, number
    addresses = spec.get("clusterIPs") or [spec.get("clusterIP", "")]
    for i, address in enumerate(addresses):
        if address and address != "None":
            yield f"spec.clusterIPs[{i}]", address
