"""Whether two Services of the files want one address or one node port, which an API server gives only once.

Addresses and ports are the cluster's, whatever the namespace and the protocol. One Service may have a port of several
protocols.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from gputile.tools.simulator.manifests import Manifest, ManifestError


def allocated_twice(manifests: Iterable[Manifest]) -> Iterator[ManifestError]:
    """Yield which fields of the Services among valid ``manifests`` want what another one of them has."""
    had: dict[str | int, tuple[object, object]] = {}
    for each in manifests:
        if (each.kind, each.api_version) != ("Service", "v1"):
            continue
        metadata = each.body["metadata"]
        service = metadata.get("namespace"), metadata.get("name") or id(each)  # a generated name is a new one
        for path, wanted in _wanted(each.body.get("spec") or {}):
            if had.setdefault(wanted, service) != service:
                kind = "port" if isinstance(wanted, int) else "IP"
                yield each.origin.error(path, f"Invalid value: {wanted}: provided {kind} is already allocated")


def _wanted(spec: dict[str, Any]) -> Iterator[tuple[str, str | int]]:
    """Yield the field and the value of each address and node port that a Service names."""
    for i, port in enumerate(spec.get("ports") or ()):
        if number := port.get("nodePort"):
            yield f"spec.ports[{i}].nodePort", number
    if number := spec.get("healthCheckNodePort"):
        yield "spec.healthCheckNodePort", number
    addresses = spec.get("clusterIPs") or [spec.get("clusterIP", "")]
    for i, address in enumerate(addresses):
        if address and address != "None":
            yield f"spec.clusterIPs[{i}]", address
