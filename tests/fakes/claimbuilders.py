"""ResourceClaims in one line each."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gputile.api.core import Pod, PodResourceClaim
from gputile.api.resource_claims import ResourceClaim, device_name
from tests.fakes.corebuilders import pod


def claim_body(
    name: str = "c",
    *,
    devices: str = "gputile-share",
    count: int = 1,
    request: Mapping[str, Any] | None = None,
    **amounts: Any,
) -> dict[str, Any]:
    """A claim of one request for ``count`` devices of the class ``devices``, as it is sent to the API server."""
    exactly: dict[str, Any] = {"deviceClassName": devices, "count": count}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly | dict(request or {})}]}},
    }


def result(node: str, index: int, *, whole: bool = False, **consumed: Any) -> dict[str, Any]:
    """What kube-scheduler writes of one device."""
    found = {"request": "gpu", "driver": "gpu.gputile.io", "pool": node, "device": device_name(index)}
    return found if whole else found | {"shareID": "s", "consumedCapacity": {"pods": "1", **consumed}}


def claim(
    name: str = "c",
    *results: Mapping[str, Any],
    uid: str = "",
    pods: Sequence[str] = (),
    constraints: Sequence[Mapping[str, Any]] = (),
    **asked: Any,
) -> ResourceClaim:
    """A claim with the UID ``uid-<name>``, allocated ``results``."""
    body = claim_body(name, **asked)
    body["metadata"] |= {"namespace": "default", "uid": uid or f"uid-{name}"}
    body["spec"]["devices"]["constraints"] = list(constraints)
    if results:
        reserved = [{"resource": "pods", "name": each, "uid": each} for each in pods]
        body["status"] = {"allocation": {"devices": {"results": list(results)}}, "reservedFor": reserved}
    return msgspec.convert(body, ResourceClaim)


def pod_with_claims(uid: str, *names: str) -> Pod:
    found = pod(uid)
    found.spec.resource_claims = tuple(PodResourceClaim(name=name, resource_claim_name=name) for name in names)
    return found
