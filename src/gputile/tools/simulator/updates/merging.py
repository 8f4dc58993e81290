"""Merges a manifest into the object that is stored, as ``kubectl apply`` does by strategic merge.

What the manifest says goes into the object; what was applied before and is no longer said is taken out; and all else
stays as it is: what the API server filled in, what a HorizontalPodAutoscaler or a person changed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from gputile.api.kubernetes import kubernetes_kinds
from gputile.tools.simulator.documents.manifests import Manifest
from gputile.tools.simulator.rules.values.fields import Json, broken_fields
from gputile.tools.simulator.updates.differences import last_applied

# The kinds of which fields of the template or the number of pods may stay, without fields of one object alone.
_KINDS: Final = ("DaemonSet", "Deployment", "PodDisruptionBudget", "ReplicaSet", "StatefulSet")
# By which field entries of a list are the same; other lists are replaced as a whole (k8s.io/api, patchMergeKey).
_KEYS: Final = {
    **dict.fromkeys(("containers", "ephemeralContainers", "initContainers", "volumes", "env"), "name"),
    **dict.fromkeys(("imagePullSecrets", "resourceClaims"), "name"),
    "hostAliases": "ip",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
}
_KEYED: Final = {"ConfigMap": ("data", "binaryData"), "Secret": ("data",)}  # kinds without a spec, and what is merged
_RETAINING: Final = ("strategy", "volumes")  # of which only the fields stay that are said (patchStrategy retainKeys)


def merged(manifest: Manifest, stored: Json) -> Manifest:
    """Return ``manifest`` with what stays of the spec or the data of what is ``stored``; itself for other kinds.

    It is returned as it is, too, where the stored object has fields that are not known here.
    """
    if manifest.kind in _KEYED:
        return _with_keys(manifest, stored)
    if manifest.kind not in _KINDS or not isinstance(manifest.body.get("spec"), dict):
        return manifest
    type_name = kubernetes_kinds().kinds[manifest.api_version][manifest.kind]
    if broken_fields(type_name, manifest.body) or any(_unknown(type_name, stored)):
        return manifest
    before = _dict(last_applied(stored).get("spec")) | _dict(manifest.nulls.get("spec"))  # a null takes out, too
    spec = _merged("spec", manifest.body["spec"], stored.get("spec", {}), before)
    return replace(manifest, body=manifest.body | {"spec": spec})


def _with_keys(manifest: Manifest, stored: Json) -> Manifest:
    """Return a ConfigMap or Secret with the keys that stay."""
    fields = {}
    for name in _KEYED[manifest.kind]:
        if isinstance(written := manifest.body.get(name, {}), dict):
            fields[name] = _merged(name, written, stored.get(name, {}), last_applied(stored).get(name))
    return replace(manifest, body=manifest.body | {name: value for name, value in fields.items() if value})


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _unknown(type_name: str, stored: Json) -> list[str]:
    return [path for path, rule in broken_fields(type_name, stored) if rule.startswith("unknown field")]


def _merged(name: str, written: Any, stored: Any, before: Any) -> Any:
    """Return what becomes of the field ``name``."""
    if isinstance(written, dict) and isinstance(stored, dict):
        earlier = before if isinstance(before, dict) else {}
        stays = {} if name in _RETAINING else {key: stored[key] for key in stored.keys() - earlier.keys()}
        return stays | {key: _merged(key, value, stored.get(key), earlier.get(key)) for key, value in written.items()}
    key = _KEYS.get(name)
    if key is not None and all(_is_keyed(each, key) for each in (written, stored)):
        return _entries(name, key, written, stored, before if _is_keyed(before, key) else [])
    return written


def _entries(name: str, key: str, written: Sequence[Json], stored: Sequence[Json], before: Sequence[Json]) -> list[Any]:
    there, had = {each[key]: each for each in stored}, {each[key]: each for each in before}
    one = "volumes" if name == "volumes" else ""  # the name under which an entry's own fields are merged
    said = [_merged(one, each, there.get(each[key]), had.get(each[key])) for each in written]
    gone = {each[key] for each in written} | had.keys()
    return [*said, *(each for each in stored if each[key] not in gone)]


def _is_keyed(entries: Any, key: str) -> bool:
    """Return whether a list's entries are told apart by ``key``."""
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        return False
    found = [each.get(key) for each in entries]
    return all(isinstance(each, str | int) for each in found) and len(set(found)) == len(found)
