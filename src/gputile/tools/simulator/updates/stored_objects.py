"""Compares manifests with the objects in the cluster: what cannot change, and whose pods are replaced."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from gputile.api.kubernetes import kubernetes_kinds
from gputile.tools.simulator.cluster.owners import Owner, owner_in
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError
from gputile.tools.simulator.documents.notes import Note
from gputile.tools.simulator.rules.values.fields import Json, broken_fields
from gputile.tools.simulator.rules.values.names import is_version
from gputile.tools.simulator.updates.claim_growth import FIELD, class_of, grows, refused_growth
from gputile.tools.simulator.updates.immutable_fields import broken_changes, path_of, template_changes
from gputile.tools.simulator.updates.merging import merged
from gputile.tools.simulator.updates.running_pods import KnownWorkloads

CLAIM: Final = "PersistentVolumeClaim"
_ENDED: Final = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")  # conditions of a Job


@dataclass(slots=True)
class StoredObjects:
    """Objects by their paths at the API server. ``unread`` says why others are not known.

    ``classes`` are the StorageClasses, by name, of claims that grow; one that is not there is None.
    """

    bodies: dict[str, Json] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    classes: dict[str, Json | None] = field(default_factory=dict)

    def merged(self, manifests: Iterable[Manifest]) -> tuple[list[Manifest], list[Note]]:
        """Return ``manifests`` with what stays of the objects in the cluster, and what is to say of that."""
        found, notes = [], []
        for manifest in manifests:
            stored = self.bodies.get(where(manifest)) if manifest.judged else None
            both = manifest if stored is None else merged(manifest, stored)
            found.append(both)
            before, now = (each.body.get("spec") or {} for each in (manifest, both))
            if both is not manifest and "replicas" in now and "replicas" not in before:
                notes.append(Note(f"spec.replicas stays {now['replicas']}, as in the cluster", manifest.origin))
        return found, notes

    def refused(self, manifests: Iterable[Manifest]) -> Iterator[ManifestError]:
        """Yield each field of valid ``manifests`` that cannot be changed to what they say."""
        given = list(manifests)
        written = {each.namespaced_name[1]: each.body for each in given if each.kind == "StorageClass"}
        classes = {**self.classes, **written}
        for manifest in given:
            yield from self._mistaken(manifest)
        for manifest, stored in self._known(given):
            broken = list(broken_changes(manifest.kind, manifest.body, stored))
            for path, rule in broken:
                yield manifest.origin.error(path, rule)
            known = where(manifest) not in self.unread
            grown = known and manifest.kind == CLAIM and not broken and grows(manifest.body, stored)
            if grown and (why := refused_growth(stored, classes.get(class_of(stored)))):
                yield manifest.origin.error(FIELD, why)

    def growing(self, manifests: Iterable[Manifest]) -> Iterator[tuple[str, str]]:
        """Yield the path of each claim that is to grow, and the name of its StorageClass, "" for none."""
        for manifest, stored in self._known(manifests):
            if manifest.kind == CLAIM and grows(manifest.body, stored):
                yield where(manifest), class_of(stored)

    def workloads(self, manifests: Iterable[Manifest]) -> KnownWorkloads:
        """Return of the objects that are known what becomes of their pods."""
        changed, left = dict[Owner, bool](), dict[Owner, int]()
        for manifest, stored in self._known(manifests):
            owner = owner_in(manifest)
            changed[owner] = template_changes(manifest.kind, manifest.body, stored)
            if manifest.kind == "Job" and (more := _left(manifest.body, stored)) is not None:
                left[owner] = more
        return KnownWorkloads(changed, left)

    def notes(self, manifests: Iterable[Manifest]) -> Iterator[Note]:
        """Yield of which manifests it is not known what they change."""
        for manifest in manifests:
            if why := self.unread.get(where(manifest)):
                said = f"whether its API server refuses a change of it is not judged: {why}"
                yield Note(said, manifest.origin)

    def _known(self, manifests: Iterable[Manifest]) -> Iterator[tuple[Manifest, Json]]:
        for manifest in manifests:
            stored = self.bodies.get(where(manifest))
            if stored is not None and (manifest.judged or not manifest.described):
                yield manifest, stored

    def _mistaken(self, manifest: Manifest) -> Iterator[ManifestError]:
        """Yield why an object that an API server has printed is not the one in the cluster."""
        path = where(manifest)
        if not path or path in self.unread or manifest.described or not manifest.stored:
            return
        metadata = manifest.body["metadata"]
        there = self.bodies[path].get("metadata", {}).get("uid") if path in self.bodies else None
        if path in self.bodies:
            if there not in (None, metadata["uid"]):
                yield manifest.origin.error("metadata.uid", f"Invalid value: it is in the cluster with the UID {there}")
        elif manifest.runs:
            rule = "it is not in the cluster, and with a node it would pass kube-scheduler by: leave it out"
            yield manifest.origin.error("spec.nodeName", rule)
        elif is_version(metadata.get("resourceVersion")):
            rule = "Forbidden: should not be set on objects to be created, and it is not in the cluster: leave it out"
            yield manifest.origin.error("metadata.resourceVersion", rule)


def where(manifest: Manifest) -> str:
    """Return the path of an object at an API server, "" where all changes of its kind are taken."""
    return path_of(manifest.api_version, manifest.kind, *manifest.namespaced_name)


def as_stored(manifest: Manifest, answer: Any) -> Json:
    """Return the ``answer`` of an API server, without nulls, as an object of the kind of ``manifest``.

    Raises:
        ValueError: it is not one; the text names the field.
    """
    type_name = kubernetes_kinds().kinds[manifest.api_version][manifest.kind]
    found = without_nulls(answer)
    wrong = (f"{path or 'it'}: {rule}" for path, rule in broken_fields(type_name, found) if rule.startswith("must be "))
    if why := next(wrong, ""):
        raise ValueError(why)
    stored: Json = found
    return stored


def _left(written: Json, stored: Json) -> int | None:
    """Return how many pods a Job still makes, None where that is not bounded by what it has done."""
    status, spec = stored.get("status", {}), written.get("spec", {})
    if any(each.get("type") in _ENDED and each.get("status") == "True" for each in status.get("conditions", ())):
        return 0
    completions = spec.get("completions")
    return max(0, completions - status.get("succeeded", 0)) if completions is not None else None


def without_nulls(value: Any) -> Any:
    """Return a value without nulls, which mean that nothing is there."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value if item is not None] if isinstance(value, list) else value
