"""Writes the API server's defaults into a new pod (k8s.io/kubernetes, pkg/apis/core/v1, defaults.go).

Only that is here which decides where a pod can go, and is not as well read from what is written.
"""

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]


def with_defaults(pod: Json) -> Json:
    """Return a valid ``pod`` with the host ports that it has as a pod in its host's network."""
    spec = pod.get("spec", {})
    if not spec.get("hostNetwork"):
        return pod
    opened = {
        kind: [{**each, "ports": list(map(_opened, each.get("ports", ())))} for each in spec[kind]]
        for kind in ("initContainers", "containers")
        if kind in spec
    }
    return {**pod, "spec": {**spec, **opened}}


def _opened(port: Json) -> Json:
    return port if port.get("hostPort") else {**port, "hostPort": port["containerPort"]}
