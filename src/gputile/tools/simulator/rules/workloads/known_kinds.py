"""Reads the table of custom kinds that make pods, and checks what people add to it."""

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gputile.api.conversion import convert
from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.wording import shown
from gputile.support.yaml_loader import load_document
from gputile.tools.simulator.documents.cluster_description import API_VERSION
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError, load_manifests
from gputile.tools.simulator.documents.paths import EACH
from gputile.tools.simulator.rules.values.names import broken_labels
from gputile.tools.simulator.rules.workloads.pod_kinds import KindsTable, PodKind, PodsOfKind, filled

KIND: Final = "PodKinds"
_IN_A_JOB: Final = ".spec.template"


@dataclass(slots=True)
class PodKinds:
    """The table in force, by apiVersion and kind."""

    kinds: dict[tuple[str, str], PodKind] = field(default_factory=dict)

    def find(self, manifest: Manifest) -> PodKind | None:
        """Return what is known of an object's kind."""
        return self.kinds.get((manifest.api_version, manifest.kind))

    def of_kind(self, kind: str) -> list[str]:
        """Return the apiVersions that have a kind of this name."""
        return [version for version, name in self.kinds if name == kind]


def known_kinds(paths: Iterable[str] = ()) -> PodKinds:
    """Return the table with the entries of the files added, which replace entries of the same kind.

    Raises:
        ManifestError: a file cannot be used.
    """
    data = pkgutil.get_data(__name__, "pod_kinds.yaml")
    found = PodKinds()
    body = load_document(data or b"")
    tables = [convert(body, KindsTable)]
    for manifest in load_manifests(paths).manifests:
        if (manifest.api_version, manifest.kind) != (API_VERSION, KIND):
            raise manifest.origin.error("kind", f"must be {KIND} of {API_VERSION}")
        tables.append(manifest.decode(KindsTable))
        if broken := [manifest.origin.error(path, why) for path, why in _broken_table(tables[-1])]:
            raise ManifestError("\n".join(map(str, broken)))
    for table in tables:
        found.kinds |= {(each.api_version, each.kind): each for each in table.kinds}
    return found


def _broken_table(table: KindsTable) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a table: the field, and the rule that it breaks."""
    for i, kind in enumerate(table.kinds):
        where = f"kinds[{i}]"
        if kind.kind in kubernetes_kinds().kinds.get(kind.api_version, {}):
            why = f"{shown(kind.kind)} of {shown(kind.api_version)} is Kubernetes' own, and is read as it is there"
            yield f"{where}.kind", why
        if kind.template_of and (not kind.pods or EACH in kind.pods[0].template.split(".")):
            why = "pods must say where the template that is named stands: its first template, without '*'"
            yield f"{where}.templateOf", why
        yield from broken_labels(f"{where}.owned", _sample(kind.owned))
        for path in kind.required:
            if path.endswith(EACH):
                yield f"{where}.required", f"{shown(path)} names no field"
        for j, rule in enumerate(kind.pods):
            yield from _broken_pods(f"{where}.pods[{j}]", rule)


def _broken_pods(where: str, rule: PodsOfKind) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with an entry that stands at ``where``."""
    yield from broken_labels(f"{where}.labels", _sample(rule.labels))
    stars = rule.template.split(".").count(EACH)
    for path in (path for count in rule.counts() for path in count.paths()):
        if path.split(".").count(EACH) > stars:
            yield f"{where}.count", f"{shown(path)} has more '*' than the template's path"
    if rule.keys and not stars:
        yield f"{where}.keys", f"{shown(rule.template)} has no '*'"
    for path in (rule.template, rule.otherwise):
        if rule.job_name and path and not path.endswith(_IN_A_JOB):
            yield f"{where}.jobName", f"{shown(path)} is in no template of a Job: it does not end with {_IN_A_JOB}"


def _sample(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels with short names in their braces."""
    return {key: filled(text, "x", "x", 0) for key, text in labels.items()}
