"""Checks kinds that are not Kubernetes' own, as far as the table says what API servers demand."""

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.documents.manifests import Manifest
from gputile.tools.simulator.documents.paths import EACH, Step, entries, places_at, written
from gputile.tools.simulator.rules.values.field_rules import broken_values
from gputile.tools.simulator.rules.values.fields import POD_TEMPLATE, Broken, broken_fields
from gputile.tools.simulator.rules.values.names import broken_label_value, broken_rfc1035_label
from gputile.tools.simulator.rules.values.numbers import one_of
from gputile.tools.simulator.rules.workloads.dependencies import broken_dependencies
from gputile.tools.simulator.rules.workloads.exclusive_topology import broken_exclusive_topology
from gputile.tools.simulator.rules.workloads.jobs import broken_job_labels
from gputile.tools.simulator.rules.workloads.kinds import (
    broken_job_template,
    broken_made_name,
    broken_restarts,
    broken_selected,
)
from gputile.tools.simulator.rules.workloads.pod_kinds import PodKind
from gputile.tools.simulator.rules.workloads.template_groups import Group

_ROLLOUT: Final = ("argoproj.io", "Rollout")
_SELECTOR: Final = "meta.v1.LabelSelector"
_JOB_TEMPLATE: Final = "batch.v1.JobTemplateSpec"
_BELOW_A_JOB: Final = ("spec", "template")  # where a Job has the template of its pods
_ALIKE: Final = 0.8  # how much of two names is the same if one is the other one mistyped
_MOST_OF_INDEX: Final = 5  # characters that a Job adds to the names of its pods, behind a "-"
_Fields = dict[str, "_Fields"]


def broken_custom(manifest: Manifest, kind: PodKind) -> Iterator[Broken]:
    """Yield what is wrong with an object's name, and with the fields that its kind requires or has its templates in."""
    yield from broken_exclusive_topology(manifest.kind, manifest.body)
    yield from broken_dependencies(manifest.kind, manifest.body)
    own = any(places_at(manifest.body, "spec.template")) and not any(places_at(manifest.body, kind.template_of))
    if own and (manifest.group, manifest.kind) == _ROLLOUT:
        yield from _broken_selector(manifest.body["spec"])
    name = manifest.body.get("metadata", {}).get("name")
    if name and kind.longest_name:
        yield from _broken_name(name, kind.longest_name)
    for rule in kind.pods:
        for place in places_at(manifest.body, rule.template.rpartition(f".{EACH}.")[0]) if rule.keys else ():
            for key, _ in entries(place.value):
                yield from one_of(written((*place.steps, key)), str(key), rule.keys)
    for path in dict.fromkeys(_holders(kind)):
        for place in places_at(manifest.nulls or manifest.body, path):
            for step, entry in entries(place.value):
                if entry is None:
                    yield written((*place.steps, step)), "must be a mapping, is nothing"
    yield from _mistyped(manifest.body, _fields(_paths(kind)), ())
    if kind.any_of and not any(place.value for path in kind.any_of for place in places_at(manifest.body, path)):
        yield kind.any_of[0], f"Required value: one of {', '.join(kind.any_of)} has to be there"
    for path in kind.required:
        before, _, field = path.rpartition(".")
        for place in places_at(manifest.body, before):
            if isinstance(place.value, dict) and field not in place.value:
                yield written((*place.steps, field)), "Required value"


def _broken_selector(spec: dict[str, Any]) -> Iterator[Broken]:
    """Yield what is wrong with the selector of an object that has a template of its own."""
    broken = broken_fields(_SELECTOR, spec.get("selector"), "spec.selector") if spec.get("selector") else ()
    if not spec.get("selector"):
        yield "spec.selector", "Required value"
    elif broken or broken_fields(POD_TEMPLATE, spec["template"], "spec.template") or not spec["template"].get("spec"):
        yield from broken
    else:
        yield from broken_values(_SELECTOR, spec["selector"], "spec.selector")
        yield from broken_selected(spec, "rollout")


def broken_group(manifest: Manifest, group: Group, owner: str) -> Iterator[Broken]:
    """Yield why a template makes no pods: by what the controller of ``owner`` looks for or adds, or by its Jobs."""
    names = [each.get("name") for each in group.template.get("spec", {}).get("containers", ())]
    if group.rule.container and group.rule.container not in names:
        rule = f"must have a container called {group.rule.container}, which the {manifest.kind}'s controller looks for"
        yield f"{group.path}.spec.containers", f"Required value: {rule}"
    last, key = max(0, group.count - 1), str(group.steps[-2]) if len(group.steps) > 1 else ""
    if key in group.rule.single and group.count != 1:
        yield written((*group.steps[:-1], "replicas")), f"Invalid value: {group.count}: must be 1"
    if {key, EACH} & {*group.rule.services} and (why := broken_rfc1035_label(name := group.name(owner, last))):
        yield "metadata.name", f"{why}: a Service of its pod would be called {name}"
    for label, value in group.labels(owner, last).items():
        if why := broken_label_value(value):
            yield (
                f"{group.path}.metadata.labels[{shown(label)}]",
                f"{why}; the {manifest.kind} gives its pods this label",
            )
    if group.rule.made_by is not None:
        yield from broken_restarts(group.path, group.template, job=group.rule.made_by.kind == "Job")
        kind, name = group.rule.made_by.kind, group.made_name(owner) if group.count else ""
        if name and (why := broken_made_name(kind, name)):
            yield "metadata.name", f"{why}; its {kind} would be called so"
    if group.rule.job_name:
        yield from _broken_job(manifest, group, owner)


def _broken_job(manifest: Manifest, group: Group, owner: str) -> Iterator[Broken]:
    """Yield what is wrong with the Jobs that make the pods: their template, and their names.

    Their controller gives them Indexed completions and a restartPolicy where they name none, and their names and those
    of their pods are to be RFC 1035 labels: pkg/webhooks/jobset_webhook.go of JobSet.
    """
    steps = group.steps[: -len(_BELOW_A_JOB)]
    job: Any = manifest.body
    for step in steps:
        job = job[step]
    path = written(steps)
    broken = broken_fields(_JOB_TEMPLATE, job, path)
    yield from broken
    if broken:
        return
    pod = {"restartPolicy": "OnFailure", **group.template.get("spec", {})}
    spec = {"completionMode": "Indexed", **job["spec"], "template": {**group.template, "spec": pod}}
    if "parallelism" not in spec:
        spec.setdefault("completions", 1)
    yield from broken_job_template(path, {**job, "spec": spec})
    yield from broken_job_labels(f"{path}.spec", spec, group.job_name(owner, 0) if group.jobs == 1 else "")
    name = group.job_name(owner, max(0, group.jobs - 1))
    if why := broken_rfc1035_label(name):
        yield written((*steps[:-1], "name")), f"{why}: a Job of it would have this name"
    elif spec["completionMode"] == "Indexed" and "completions" in job["spec"]:
        name = f"{name}-{max(0, job['spec']['completions'] - 1)}-{'x' * _MOST_OF_INDEX}"
        if why := broken_rfc1035_label(name):
            yield written((*steps[:-1], "name")), f"{why}: a pod of it would have this name"


def _broken_name(name: str, longest: int) -> Iterator[Broken]:
    """Yield why controllers cannot name Services and pods after an object."""
    if why := broken_rfc1035_label(name):
        yield "metadata.name", why
    elif len(name) > longest:
        yield "metadata.name", f"Invalid value: {shown(name)}: must be no more than {longest} characters"


def _paths(kind: PodKind) -> Iterator[str]:
    """Yield the paths of an object that the table knows."""
    for rule in kind.pods:
        yield from (rule.template, rule.otherwise, rule.unless, rule.suspended, rule.claims)
        yield from (path for each in rule.added for path in (each.when.path, each.resources))
        if rule.when is not None:
            yield rule.when.path
        for count in rule.counts():
            yield from count.paths()
    yield from (kind.suspended, kind.template_of, *kind.required, *kind.any_of)
    if kind.scheduler is not None:
        yield kind.scheduler.path


def _holders(kind: PodKind) -> Iterator[str]:
    """Yield the paths of the lists and mappings whose entries the table knows."""
    for path in _paths(kind):
        steps = path.split(".")
        yield from (".".join(steps[:i]) for i, step in enumerate(steps) if step == EACH)


def _fields(paths: Iterable[str]) -> _Fields:
    """Return the fields on ``paths``, each with those below it."""
    known: _Fields = {}
    for path in filter(None, paths):
        below = known
        for step in path.split("."):
            below = below.setdefault(step, {})
    return known


def _mistyped(value: Any, known: _Fields, steps: tuple[Step, ...]) -> Iterator[Broken]:
    """Yield fields that are named almost like one that is known and missing: what it leads to would not be read."""
    for name, below in known.items():
        if name == EACH:
            for step, entry in entries(value):
                yield from _mistyped(entry, below, (*steps, step))
        elif isinstance(value, dict) and name in value:
            yield from _mistyped(value[name], below, (*steps, name))
        elif isinstance(value, dict):
            for other in value:
                if other not in known and _are_alike(other, name):
                    yield written((*steps, other)), f"unknown field; did you mean {name}?"


def _are_alike(name: str, other: str) -> bool:
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio() >= _ALIKE
