"""Tells which keys pods name that the ConfigMaps and Secrets of the files do not have.

An API server takes such a pod, and its kubelet waits for the key for ever (pkg/kubelet of Kubernetes,
``makeEnvironmentVariables``; pkg/volume, ``MakePayload``). An object without any key is filled by somebody else.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gputile.api.wording import nearest, shown
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError

Json = Mapping[str, Any]
_Place = tuple[str, str, str]  # kind, namespace and name
_FIELDS: Final = {"ConfigMap": ("data", "binaryData"), "Secret": ("data", "stringData")}
_FILLED: Final = "kubernetes.io/service-account-token"  # a type of Secret to which a controller adds keys
_REFERENCES: Final = {"ConfigMap": "configMapKeyRef", "Secret": "secretKeyRef"}
_VOLUMES: Final = {"ConfigMap": "configMap", "Secret": "secret"}


def written_keys(manifests: Iterable[Manifest]) -> dict[_Place, frozenset[str]]:
    """Return the keys of the ConfigMaps and Secrets among ``manifests`` that have any, as far as they can be read."""
    found = dict[_Place, frozenset[str]]()
    for manifest in manifests:
        if manifest.api_version != "v1" or manifest.kind not in _FIELDS or manifest.body.get("type") == _FILLED:
            continue
        parts = (manifest.body.get(field) for field in _FIELDS[manifest.kind])
        keys = frozenset(str(key) for part in parts if isinstance(part, dict) for key in part)
        if keys:
            found[manifest.kind, *manifest.namespaced_name] = keys
    return found


def missing_keys(
    owner: Manifest, path: str, spec: Json, namespace: str, keys: Mapping[_Place, frozenset[str]]
) -> Iterator[ManifestError]:
    """Yield each key that the pods of the valid ``spec`` at ``path`` need, and that ``keys`` has not of its object."""
    for where, kind, name, key in _named(path, spec) if keys else ():
        there = keys.get((kind, namespace, name))
        if there is not None and key not in there:
            rule = f"the {kind} {name} has no such key, so no kubelet starts the pod{nearest(key, sorted(there))}"
            yield owner.origin.error(where, f"Invalid value: {shown(key)}: {rule}")


def _named(path: str, spec: Json) -> Iterator[tuple[str, str, str, str]]:
    """Yield the field, the kind, the name and the key of each reference that is not optional."""
    mounted = set()
    for part in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(part, ())):
            mounted |= {each["name"] for each in container.get("volumeMounts", ())}
            for j, variable in enumerate(container.get("env", ())):
                for kind, field in _REFERENCES.items():
                    found = variable.get("valueFrom", {}).get(field)
                    if found is not None and not found.get("optional"):
                        where = f"{path}.{part}[{i}].env[{j}].valueFrom.{field}.key"
                        yield where, kind, found.get("name", ""), found["key"]
    for i, volume in enumerate(spec.get("volumes", ())):
        if volume["name"] in mounted:  # no kubelet mounts another one
            yield from _items(f"{path}.volumes[{i}]", volume)
            for j, source in enumerate(volume.get("projected", {}).get("sources", ())):
                yield from _items(f"{path}.volumes[{i}].projected.sources[{j}]", source)


def _items(path: str, source: Json) -> Iterator[tuple[str, str, str, str]]:
    for kind, field in _VOLUMES.items():
        found = source.get(field, {})
        for i, item in enumerate(() if found.get("optional") else found.get("items", ())):
            name = found.get("secretName") or found.get("name", "")
            yield f"{path}.{field}.items[{i}].key", kind, name, item["key"]
