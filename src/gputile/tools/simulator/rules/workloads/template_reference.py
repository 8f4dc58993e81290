"""Finds the template that an object of a custom kind takes from another object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from gputile.api.wording import kind_of, shown
from gputile.tools.simulator.documents.manifests import Manifest
from gputile.tools.simulator.documents.paths import places_at, written
from gputile.tools.simulator.rules.values.fields import Json
from gputile.tools.simulator.rules.workloads.pod_kinds import PodKind

# Where what a Rollout names has its template (rollout/templateref.go of Argo Rollouts), by API group and kind.
_REFERRED: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("", "PodTemplate"): ("template",),
    ("apps", "Deployment"): ("spec", "template"),
    ("apps", "ReplicaSet"): ("spec", "template"),
}


@dataclass(frozen=True, slots=True)
class Reference:
    """The API group, kind and name of an object whose template another one takes."""

    group: str
    kind: str
    name: str


class ReferredTemplates:
    """The templates of the objects in the files that others can refer to."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self._manifests = manifests

    def find(self, reference: Reference, namespace: str) -> Json | None:
        """Return the template that an object of ``namespace`` refers to, None where no file has it."""
        return self._found.get((reference.group, reference.kind, namespace, reference.name))

    @cached_property
    def _found(self) -> Mapping[tuple[str, str, str, str], Json]:
        """The templates, by API group, kind, namespace and name."""
        found = {}
        for manifest in self._manifests:
            template: Any = manifest.body
            steps = _REFERRED.get((manifest.group, manifest.kind), ())
            for step in steps:
                template = template.get(step) if isinstance(template, dict) else None
            if steps and isinstance(template, dict):
                found[manifest.group, manifest.kind, *manifest.namespaced_name] = template
        return found


def template_reference(manifest: Manifest, kind: PodKind) -> Reference | None:
    """Return what an object names instead of a template of its own; None where it names nothing.

    Raises:
        ManifestError: it has a template, too, or what it names has no kind or name, or none with a template.
    """
    own = any(place for rule in kind.pods for place in places_at(manifest.body, rule.template))
    place = next(places_at(manifest.body, kind.template_of), None)
    if place is None:
        return None
    if own:
        raise manifest.origin.error(
            written(place.steps), f"Forbidden: there is {kind.pods[0].template}, too: remove one"
        )
    named = place.value if isinstance(place.value, dict) else {}
    for key in ("kind", "name"):
        if not isinstance(named.get(key), str) or not named[key]:
            raise manifest.origin.error(f"{written(place.steps)}.{key}", "must be there, as a string")
    version = str(named.get("apiVersion", ""))
    group = version.rpartition("/")[0]
    if (group, named["kind"]) not in _REFERRED:
        what = f"{shown(named['kind'])} of {shown(version)}"
        rule = f"Unsupported value: {what}: it is a Deployment or ReplicaSet of apps/v1, or a PodTemplate of v1"
        raise manifest.origin.error(f"{written(place.steps)}.kind", rule)
    return Reference(group, named["kind"], named["name"])


def with_template(manifest: Manifest, kind: PodKind, template: Json) -> Manifest:
    """Return an object with a template where its kind has the first one.

    Raises:
        ManifestError: something else than a mapping stands on the way there.
    """
    *before, last = kind.pods[0].template.split(".")
    body = dict(manifest.body)
    place = body
    for i, step in enumerate(before):
        there = place.get(step, {})
        if not isinstance(there, dict):
            raise manifest.origin.error(written(before[: i + 1]), f"must be a mapping, is {kind_of(there)}")
        place[step] = dict(there)
        place = place[step]
    place[last] = template
    return replace(manifest, body=body)
