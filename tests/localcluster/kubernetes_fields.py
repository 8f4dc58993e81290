"""What manifests may say: ``src/gputile/api/kubernetes/fields.json``, condensed from what an API server serves.

``make fields`` writes it from the OpenAPI documents and the discovery of the local control plane's kube-apiserver.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.localcluster.binaries import components_or_skip
from tests.localcluster.client import Api
from tests.localcluster.controlplane import ControlPlane

FILE = Path(__file__).resolve().parents[2] / "src" / "gputile" / "api" / "kubernetes" / "fields.json"
# The kinds whose fields are checked, and those that have them as a part; of all others the names are enough.
CHECKED = {
    "v1": (
        *("ConfigMap", "LimitRange", "Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim", "Pod"),
        *("PodTemplate", "ReplicationController", "ResourceQuota", "Secret", "Service", "ServiceAccount"),
    ),
    "apps/v1": ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"),
    "autoscaling/v1": ("HorizontalPodAutoscaler",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "batch/v1": ("CronJob", "Job"),
    "networking.k8s.io/v1": ("Ingress", "IngressClass", "NetworkPolicy"),
    "node.k8s.io/v1": ("RuntimeClass",),
    "policy/v1": ("PodDisruptionBudget",),
    "rbac.authorization.k8s.io/v1": ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    "resource.k8s.io/v1": ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate"),
    "scheduling.k8s.io/v1": ("PriorityClass",),
    "storage.k8s.io/v1": ("StorageClass",),
}
_SCALARS = {"boolean": "bool", "string": "string", "number": "number", "object": "any"}
_PREFIXES = ("io.k8s.api.", "io.k8s.apimachinery.pkg.apis.", "io.k8s.apimachinery.pkg.api.", "io.k8s.apimachinery.pkg.")

Json = dict[str, Any]


def served(api: Api) -> Json:
    """Return the content of the file as this API server has it."""
    kinds = {version: _names(api.get(path)["resources"]) for version, path in _group_versions(api)}
    schemas: Json = {}
    for version in CHECKED:
        schemas |= api.get(f"/openapi/v3/{_path(version)}")["components"]["schemas"]
    roots = [_root(version, kind) for version, names in CHECKED.items() for kind in names]
    types = {_short(name): _fields(schemas[name]) for name in _reached(schemas, roots) if "properties" in schemas[name]}
    for version, names in CHECKED.items():
        kinds[version] |= {kind: _short(_root(version, kind)) for kind in names}
    return {"version": api.get("/version")["gitVersion"], "kinds": kinds, "types": types}


def text(content: Json) -> str:
    """Return the file's text: one type on a line."""
    parts = []
    for key, value in content.items():
        if isinstance(value, dict):
            lines = (f"  {json.dumps(name)}: {json.dumps(value[name], sort_keys=True)}" for name in sorted(value))
            parts.append(f" {json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n }")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _group_versions(api: Api) -> Iterator[tuple[str, str]]:
    yield "v1", "/api/v1"
    for group in api.get("/apis")["groups"]:
        for version in group["versions"]:
            yield version["groupVersion"], f"/apis/{version['groupVersion']}"


def _names(resources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {each["kind"]: "" for each in resources if "/" not in each["name"]}


def _path(version: str) -> str:
    return f"apis/{version}" if "/" in version else f"api/{version}"


def _root(version: str, kind: str) -> str:
    group, _, number = version.rpartition("/")
    return f"io.k8s.api.{group.partition('.')[0] or 'core'}.{number}.{kind}"


def _short(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _reached(schemas: Json, roots: Iterable[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _references(schemas[name])
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for each in schema.values():
            yield from _references(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def _fields(schema: Json) -> dict[str, str]:
    """Return each field's type; "!" behind it says that the field must be there."""
    required = schema.get("required", ())
    return {name: _type(field) + ("!" if name in required else "") for name, field in schema["properties"].items()}


def _type(schema: Json) -> str:
    """Return a type as ``gputile.api.kubernetes`` reads it."""
    if "$ref" in schema:
        name = _short(schema["$ref"].rpartition("/")[2])
        return "any" if name in ("meta.v1.FieldsV1", "runtime.RawExtension") else name
    if "allOf" in schema:
        (only,) = schema["allOf"]
        return _type(only)
    kind = schema["type"]
    if kind == "array":
        return f"[]{_type(schema['items'])}"
    if kind == "object" and "additionalProperties" in schema:
        return f"{{}}{_type(schema['additionalProperties'])}"
    if kind == "integer":
        return str(schema["format"])
    return f"string({'|'.join(schema['enum'])})" if "enum" in schema else _SCALARS[kind]


if __name__ == "__main__":
    with ControlPlane(components_or_skip()) as plane:
        FILE.write_text(text(served(plane.api)), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
