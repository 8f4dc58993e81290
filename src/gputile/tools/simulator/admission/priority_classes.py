"""Writes into a pod the priority of its PriorityClass, as the API server does."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gputile.api.wording import shown
from gputile.api.workloads import ListedPriorityClass
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError, Origin
from gputile.tools.simulator.documents.notes import Note

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


def listed_classes(listed: Iterable[ListedPriorityClass]) -> PriorityClasses:
    """Return the PriorityClasses of a cluster, by name."""
    found = (
        (each.metadata.name, PriorityClass(each.value, each.preemption_policy or _PREEMPTING, each.global_default))
        for each in listed
    )
    return {**SYSTEM_CLASSES, **dict(found)}


def with_written_classes(known: PriorityClasses, manifests: Iterable[Manifest]) -> PriorityClasses:
    """Return the ``known`` PriorityClasses and those among ``manifests``, by name.

    Raises:
        ManifestError: one has no value that an API server takes, or there are two defaults.
    """
    found = dict(known)
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
    origin: Origin, prefix: str, pod: Mapping[str, Any], classes: PriorityClasses, notes: list[Note], *, complete: bool
) -> Mapping[str, Any]:
    """Return ``pod`` with what its class gives it; ``prefix`` stands before the paths of its fields.

    If ``classes`` are not ``complete``, a class that is not among them counts as 0, and a note says so.

    Raises:
        ManifestError: the pod says another priority or preemption policy than its class, or there is no such class.
    """
    spec = pod.get("spec", {})
    name = spec.get("priorityClassName") or _default(classes)
    if not name:
        _refuse_own(origin, prefix, spec)
        return pod
    if name not in classes:
        if name.startswith(_RESERVED):
            raise origin.error(
                f"{prefix}spec.priorityClassName", f"Forbidden: there can be no PriorityClass {shown(name)}"
            )
        if complete:
            rule = f"Forbidden: no PriorityClass with name {shown(name)} was found"
            raise origin.error(f"{prefix}spec.priorityClassName", rule)
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


def _refuse_own(origin: Origin, prefix: str, spec: Mapping[str, Any]) -> None:
    """Refuse a priority and a preemption policy other than those of a pod without a class."""
    wrong = []
    if spec.get("priority", 0) != 0:
        wrong.append(("priority", f"the integer value of priority ({spec['priority']})"))
    if spec.get("preemptionPolicy", _PREEMPTING) != _PREEMPTING:
        wrong.append(("preemptionPolicy", shown(spec["preemptionPolicy"])))
    if wrong:
        rule = "comes from a PriorityClass: name one in priorityClassName instead"
        lines = (origin.error(f"{prefix}spec.{field}", f"Forbidden: {said} {rule}") for field, said in wrong)
        raise ManifestError("\n".join(map(str, lines)))


def _default(classes: PriorityClasses) -> str:
    """Return the name of the class of pods that name none; "" for none."""
    return next((name for name, each in classes.items() if each.is_default), "")
