"""Builds dry-run requests for manifests, and parses the responses. The caller sends them.

There is one request for each object, and one for a pod of each pod template, since an API server admits the pods of a
template only when their controller creates them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gputile.tools.simulator.controllers import MAKERS, template_path
from gputile.tools.simulator.fields import Json
from gputile.tools.simulator.manifests import Manifest
from gputile.tools.simulator.pod_kinds import PodKinds
from gputile.tools.simulator.pod_shapes import pods_by_shape, value_at

_CLAIMS: Final = "volumeClaimTemplates"
_CLAIM_NAME: Final = ("metadata", "name")
_UNKNOWN_FIELD: Final = re.compile(r'(unknown|duplicate) field "([^"]*)"')
_PREAMBLE: Final = re.compile(r'^\S+ "[^"]*" is (?:forbidden|invalid): ')
# The wording of RBAC, which admission does not use: User "ci" cannot create resource "pods" in API group "" ...
_NO_RIGHT: Final = re.compile(r'User "[^"]*" cannot \w+ (?:resource|path) "')
_LONGEST_CAUSE: Final = 300  # characters; the message about an immutable field contains its whole value
_NEEDED: Final = ("Namespace", "PriorityClass", "RuntimeClass", "ServiceAccount")
_NOT_FOUND: Final = re.compile(r"not found|was found")


@dataclass(frozen=True, slots=True)
class Question:
    """The object of a dry-run request: the manifest's own if ``path`` is "", else a pod of the template at ``path``."""

    manifest: Manifest
    api_version: str
    kind: str
    body: dict[str, Any]
    path: str = ""

    @property
    def namespace(self) -> str:
        """The namespace of the request, if the kind is namespaced."""
        return self.manifest.namespaced_name[0]

    @property
    def name(self) -> str:
        """The object's name; "" if the API server generates it."""
        return "" if self.path else self.manifest.namespaced_name[1]


def questions(manifests: Iterable[Manifest], kinds: PodKinds) -> Iterator[Question]:
    """Yield the requests for all objects that do not describe a cluster and are not running pods."""
    for manifest in manifests:
        if manifest.described or manifest.runs:
            continue
        body, metadata = manifest.body, manifest.body.get("metadata")
        if isinstance(metadata, dict) and "managedFields" in metadata:  # clients must not send it
            body = {**body, "metadata": {key: metadata[key] for key in metadata if key != "managedFields"}}
        yield Question(manifest, manifest.api_version, manifest.kind, body)
        for path, template in _templates(manifest, kinds):
            yield Question(manifest, "v1", "Pod", _pod(manifest, template), path)


def _templates(manifest: Manifest, kinds: PodKinds) -> Iterator[tuple[str, Json]]:
    """Yield each pod template of a known kind, and its path."""
    found = kinds.find(manifest)
    if manifest.api_version == MAKERS.get(manifest.kind) and manifest.kind != "Pod":
        steps = template_path(manifest.kind)
        template = value_at(manifest.body, steps)
        if isinstance(template, dict) and isinstance(template.get("spec"), dict):
            yield ".".join(steps), {**template, **_claims(value_at(manifest.body, steps[:-1]))}
    elif found is not None:
        for group in {group.steps: group for group in pods_by_shape(manifest, found).groups if group.rule}.values():
            yield group.path, {**group.template, **_claims(value_at(manifest.body, group.steps[:-1]))}


def _claims(beside: Any) -> Json:
    """Return the ``volumeClaimTemplates`` next to a pod template."""
    found = beside.get(_CLAIMS) if isinstance(beside, dict) else None
    return {_CLAIMS: found} if isinstance(found, list) else {}


def _pod(manifest: Manifest, template: Json) -> dict[str, Any]:
    """Build the pod that a controller creates from a template, with volumes for its ``volumeClaimTemplates``."""
    metadata, spec = template.get("metadata"), template["spec"]
    given = metadata if isinstance(metadata, dict) else {}
    kept = {key: given[key] for key in ("labels", "annotations") if key in given}
    claims = [name for each in template.get(_CLAIMS, ()) if isinstance(name := value_at(each, _CLAIM_NAME), str)]
    volumes = spec.get("volumes")
    if claims and isinstance(volumes, list | None):
        others = [each for each in volumes or () if not isinstance(each, dict) or each.get("name") not in claims]
        made = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
        spec = {**spec, "volumes": [*others, *made]}
    prefix = f"{manifest.namespaced_name[1] or manifest.kind.lower()}-"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**kept, "generateName": prefix}, "spec": spec}


def lacks_right(said: str) -> bool:
    """Return whether RBAC refused the request, which says nothing about the object."""
    return _NO_RIGHT.search(said) is not None


def comes_with_files(said: str, names: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the refusal names a missing object that the files contain; ``names`` are theirs, by kind."""
    found = (name for kind in _NEEDED for name in names.get(kind, ()))
    return _NOT_FOUND.search(said) is not None and any(re.search(rf"\b{re.escape(name)}\b", said) for name in found)


def refusal_lines(question: Question, said: str, details: Any) -> list[str]:
    """Return why the API server refused an object, one line per cause; ``details`` are those of its Status."""
    before = f"{question.path}." if question.path else ""
    origin = question.manifest.origin
    causes = details.get("causes") if isinstance(details, dict) else None
    found = [each for each in causes or () if isinstance(each, dict) and each.get("message")]
    named = [each for each in found if each.get("field")]
    if found and len(named) == len(found):
        return [str(origin.error(f"{before}{each['field']}", _shortened(str(each["message"])))) for each in named]
    if unknown := _UNKNOWN_FIELD.findall(said):
        return [str(origin.error(f"{before}{field}", f"{what} field")) for what, field in unknown]
    return [str(origin.error(question.path, _PREAMBLE.sub("", said)))]


def _shortened(message: str) -> str:
    """Return an error message; if it is long, most of the value that it contains is cut."""
    if len(message) <= _LONGEST_CAUSE:
        return message
    why = message.rpartition(": ")[2][-_LONGEST_CAUSE // 2 :]
    return f"{message[: _LONGEST_CAUSE // 2]}...: {why}"
