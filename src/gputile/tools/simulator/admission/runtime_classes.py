"""Writes into a pod the overhead, node selector and tolerations of its RuntimeClass."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.api.workloads import ListedRuntimeClass
from gputile.tools.simulator.documents.manifests import Manifest, Origin
from gputile.tools.simulator.documents.notes import Note
from gputile.tools.simulator.rules.objects.classes import broken_runtime_class
from gputile.tools.simulator.rules.values.field_rules import broken_values
from gputile.tools.simulator.rules.values.fields import Json, broken_fields
from gputile.tools.simulator.rules.values.repeats import identity

RuntimeClasses = Mapping[str, Json]  # by name
_KIND: Final = "RuntimeClass"


def listed_runtimes(listed: Iterable[ListedRuntimeClass]) -> RuntimeClasses:
    """Return the RuntimeClasses of a cluster, by name."""
    return {each.metadata.name: msgspec.to_builtins(each) for each in listed}


def written_runtimes(manifests: Iterable[Manifest]) -> RuntimeClasses:
    """Return the RuntimeClasses among ``manifests``, by name, without those that an API server would refuse."""
    found: dict[str, Json] = {}
    for manifest in manifests:
        type_name = kubernetes_kinds().kinds.get(manifest.api_version, {}).get(_KIND, "")
        if manifest.kind != _KIND or not type_name or broken_fields(type_name, manifest.body):
            continue
        name = manifest.body.get("metadata", {}).get("name")
        if name and not any((*broken_values(type_name, manifest.body), *broken_runtime_class(manifest.body))):
            found[name] = manifest.body
    return found


def with_runtime(
    origin: Origin, prefix: str, pod: Json, classes: RuntimeClasses, notes: list[Note], *, complete: bool
) -> Json:
    """Return ``pod`` with what its RuntimeClass gives it; ``prefix`` stands before the paths of its fields.

    If ``classes`` are not ``complete``, a class that is not among them gives nothing, and a note says so.

    Raises:
        ManifestError: the pod says something else than its class, or there is no such class.
    """
    spec = pod.get("spec", {})
    name = spec.get("runtimeClassName")
    if not name:
        return pod
    if name not in classes:
        if complete:
            raise origin.error(
                f"{prefix}spec.runtimeClassName", f"Forbidden: no RuntimeClass with name {shown(name)} was found"
            )
        said = f"no file has the RuntimeClass {shown(name)}: its overhead, nodeSelector and tolerations are not known"
        notes.append(Note(f"{prefix}spec.runtimeClassName: {said}", origin))
        return pod
    fixed, scheduling = classes[name].get("overhead", {}).get("podFixed", {}), classes[name].get("scheduling", {})
    if spec.get("overhead") and _amounts(spec["overhead"]) != _amounts(fixed):
        rule = f"it is not the overhead of the RuntimeClass {shown(name)}: leave it out"
        raise origin.error(f"{prefix}spec.overhead", f"Forbidden: {rule}")
    selector, wanted = spec.get("nodeSelector", {}), scheduling.get("nodeSelector", {})
    for key in selector.keys() & wanted.keys():
        if selector[key] != wanted[key]:
            rule = (
                f"conflict: it is {shown(selector[key])}, and the RuntimeClass {shown(name)} has {shown(wanted[key])}"
            )
            raise origin.error(f"{prefix}spec.nodeSelector[{shown(key)}]", f"Forbidden: {rule}")
    tolerations = list(spec.get("tolerations", ()))
    there = set(map(identity, tolerations))
    tolerations += [each for each in scheduling.get("tolerations", ()) if identity(each) not in there]
    given = {"overhead": fixed, "nodeSelector": {**selector, **wanted}, "tolerations": tolerations}
    return {**pod, "spec": {**spec, **{field: value for field, value in given.items() if value}}}


def _amounts(resources: Json) -> Json:
    return {name: parse_quantity(quantity) for name, quantity in resources.items()}
