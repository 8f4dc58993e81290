"""The priority that a pod gets by its PriorityClass, as the API server writes it into the pod."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.manifests import Manifest, Origin
from gputile.tools.simulator.notes import Note

_PREEMPTING: Final = "PreemptLowerPriority"


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """What a PriorityClass gives to its pods; one that ``is_default`` also gives it to pods that name none."""

    value: int
    preemption: str = _PREEMPTING
    is_default: bool = False


PriorityClasses = Mapping[str, PriorityClass]

# What every cluster has.
SYSTEM_CLASSES: Final[PriorityClasses] = {
    "system-cluster-critical": PriorityClass(2_000_000_000),
    "system-node-critical": PriorityClass(2_000_001_000),
}
_LARGEST_OF_USERS: Final = 1_000_000_000
_RESERVED: Final = "system-"  # the names of further classes cannot begin so


def written_classes(manifests: Iterable[Manifest]) -> dict[str, PriorityClass]:
    """Return the PriorityClasses among ``manifests``, by name.

    Raises:
        ManifestError: one has no value that an API server takes, or there are two defaults.
    """
    found: dict[str, PriorityClass] = {}
    for manifest in manifests:
        if manifest.kind != "PriorityClass" or manifest.group != "scheduling.k8s.io":
            continue
        metadata, value = manifest.body.get("metadata"), manifest.body.get("value", 0)
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if isinstance(value, bool) or not isinstance(value, int):
            raise manifest.origin.error("value", "must be a whole number")
        if value > _LARGEST_OF_USERS and not (manifest.stored and name in SYSTEM_CLASSES):
            raise manifest.origin.error("value", f"Forbidden: {value}: must be no more than {_LARGEST_OF_USERS}")
        if not isinstance(name, str) or name in SYSTEM_CLASSES:
            continue
        if (default := manifest.body.get("globalDefault") is True) and _default(found) not in ("", name):
            rule = f"Forbidden: {_default(found)} is already marked as default: only one default can exist"
            raise manifest.origin.error("globalDefault", rule)
        preemption = manifest.body.get("preemptionPolicy")
        policy = preemption if isinstance(preemption, str) and preemption else _PREEMPTING
        found[name] = PriorityClass(value, policy, default)
    return found


def with_priority(
    origin: Origin, prefix: str, pod: Mapping[str, Any], classes: PriorityClasses, notes: list[Note]
) -> Mapping[str, Any]:
    """Return ``pod`` with what its class gives it; ``prefix`` stands before the paths of its fields.

    A class that is not in ``classes`` counts as 0, and a note says so.

    Raises:
        ManifestError: the pod says another priority or preemption policy than its class, or no cluster can have it.
    """
    spec = pod.get("spec", {})
    name = spec.get("priorityClassName") or _default(classes)
    if not name:
        return pod
    if name not in classes:
        if name.startswith(_RESERVED):
            raise origin.error(
                f"{prefix}spec.priorityClassName", f"Forbidden: there can be no PriorityClass {shown(name)}"
            )
        if "priority" not in spec:
            said = f"no file has the PriorityClass {shown(name)}: its value counts as 0 here"
            notes.append(Note(f"{prefix}spec.priorityClassName: {said}", origin))
        return pod
    given = {"priority": classes[name].value, "preemptionPolicy": classes[name].preemption}
    for field, value in given.items():
        if spec.get(field, value) != value:
            rule = f"it is {spec[field]}, and the PriorityClass {shown(name)} has {value}: leave it out"
            raise origin.error(f"{prefix}spec.{field}", f"Forbidden: {rule}")
    return {**pod, "spec": {**spec, "priorityClassName": name, **given}}


def _default(classes: PriorityClasses) -> str:
    """Return the name of the class of pods that name none; "" for none."""
    return next((name for name, each in classes.items() if each.is_default), "")
