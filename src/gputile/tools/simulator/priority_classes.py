"""The priority that a pod gets by its PriorityClass, as the API server writes it into the pod."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.manifests import Manifest, Origin
from gputile.tools.simulator.notes import Note

# What every cluster has.
SYSTEM_CLASSES: Final[Mapping[str, int]] = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
_LARGEST_OF_USERS: Final = 1_000_000_000


def written_classes(manifests: Iterable[Manifest]) -> dict[str, int]:
    """Return the values of the PriorityClasses among ``manifests``, by name.

    Raises:
        ManifestError: one has no value that an API server takes.
    """
    found: dict[str, int] = {}
    for manifest in manifests:
        if manifest.kind != "PriorityClass" or manifest.group != "scheduling.k8s.io":
            continue
        metadata, value = manifest.body.get("metadata"), manifest.body.get("value", 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise manifest.origin.error("value", "must be a whole number")
        if value > _LARGEST_OF_USERS:
            raise manifest.origin.error("value", f"Forbidden: {value}: must be no more than {_LARGEST_OF_USERS}")
        if isinstance(metadata, dict) and isinstance(metadata.get("name"), str):
            found[metadata["name"]] = value
    return found


def with_priority(
    origin: Origin, prefix: str, pod: Mapping[str, Any], classes: Mapping[str, int], notes: list[Note]
) -> Mapping[str, Any]:
    """Return ``pod`` with the priority of its class; ``prefix`` stands before the paths of its fields.

    A class that is not in ``classes`` counts as 0, and a note says so.

    Raises:
        ManifestError: the pod says another priority than its class.
    """
    spec = pod.get("spec", {})
    name = spec.get("priorityClassName")
    if not name:
        return pod
    if name not in classes:
        if "priority" not in spec:
            said = f"no file has the PriorityClass {shown(name)}: its value counts as 0 here"
            notes.append(Note(f"{prefix}spec.priorityClassName: {said}", origin))
        return pod
    if spec.get("priority", classes[name]) != classes[name]:
        rule = f"it is {spec['priority']}, and the PriorityClass {shown(name)} has {classes[name]}: leave it out"
        raise origin.error(f"{prefix}spec.priority", f"Forbidden: {rule}")
    return {**pod, "spec": {**spec, "priority": classes[name]}}
