"""Tells which objects come before what they need, so that ``kubectl apply`` has them refused.

It sends objects in the order of the files; helm and kustomize sort theirs by kind.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from gputile.tools.simulator.documents.manifests import Manifest
from gputile.tools.simulator.documents.notes import Note

# The classes that a Pod names; templates of pods are stored without them, and controllers try again.
_CLASSES: Final = {
    "priorityClassName": ("PriorityClass", "scheduling.k8s.io"),
    "runtimeClassName": ("RuntimeClass", "node.k8s.io"),
}
# What an API server applies to the Pods that are stored after it, in its namespace.
_RULES: Final = ("LimitRange", "ResourceQuota")
_Key = tuple[str, str, str]  # kind, API group, name


def order_notes(manifests: Sequence[Manifest]) -> Iterator[Note]:
    """Yield for each Namespace or class that comes too late the first object that needs it."""
    last = {_key(manifest): i for i, manifest in enumerate(manifests) if manifest.kind in _NEEDED}
    told: set[_Key] = set()
    yield from _late_rules(manifests)
    for i, manifest in enumerate(manifests if last else ()):
        for need in _needs(manifest):
            if last.get(need, -1) > i and need not in told and not manifest.stored:
                told.add(need)
                said = f"its {need[0]}/{need[2]} comes after it: kubectl apply sends them in this order, and is refused"
                yield Note(said, manifest.origin)


def _late_rules(manifests: Sequence[Manifest]) -> Iterator[Note]:
    """Yield for each LimitRange and ResourceQuota the first Pod before it, to which it is not applied."""
    first: dict[str, Manifest] = {}
    for manifest in manifests:
        namespace = str(_at(manifest.body, "metadata").get("namespace") or "default")
        if (manifest.kind, manifest.api_version) == ("Pod", "v1") and not manifest.stored:
            first.setdefault(namespace, manifest)
        elif manifest.kind in _RULES and manifest.api_version == "v1" and namespace in first:
            kind, _, name = _key(manifest)
            said = (
                f"the {kind} {name} comes after it, and is applied to it here: kubectl apply sends them in this order, "
            )
            yield Note(f"{said}and an API server does not apply it to Pods that are there", first[namespace].origin)


_NEEDED: Final = frozenset({"Namespace", *(kind for kind, _ in _CLASSES.values())})


def _needs(manifest: Manifest) -> Iterable[_Key]:
    """Yield what has to be there before an object."""
    yield "Namespace", "", str(_at(manifest.body, "metadata").get("namespace"))
    if (manifest.kind, manifest.api_version) == ("Pod", "v1"):
        spec = _at(manifest.body, "spec")
        yield from ((*kind, str(spec[field])) for field, kind in _CLASSES.items() if field in spec)


def _key(manifest: Manifest) -> _Key:
    return manifest.kind, manifest.group, str(_at(manifest.body, "metadata").get("name"))


def _at(body: dict[str, Any], field: str) -> dict[str, Any]:
    found = body.get(field)
    return found if isinstance(found, dict) else {}
