"""Checks a Job beside the template of its pods as the API server does."""

from collections.abc import Iterator
from typing import Final

from gputile.api.wording import broken_label_name, shown
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import broken_subdomain
from gputile.tools.simulator.rules.workloads.controllers_labels import JOB_NAMES, JOB_UIDS

_LONGEST_NAME: Final = 63  # as a label of its pods
_MOST_RULES: Final = 20
_MOST_VALUES: Final = 255
_MANY_COMPLETIONS: Final = 100_000  # and the most pods of an Indexed Job at a time
_FEW_OF_MANY: Final = 10_000


def without_own_identity(body: Json) -> Json:
    """Return a Job as it was written before an API server gave it a selector and labels by its own UID."""
    uid, spec = body.get("metadata", {}).get("uid"), body.get("spec", {})
    template = spec.get("template", {})
    labels = template.get("metadata", {}).get("labels", {})
    if not uid or spec.get("manualSelector") or uid not in (labels.get(each) for each in JOB_UIDS):
        return body
    kept = {label: value for label, value in labels.items() if label not in JOB_UIDS or value != uid}
    written = {**template, "metadata": {**template["metadata"], "labels": kept}}
    return {**body, "spec": {key: value for key, value in spec.items() if key != "selector"} | {"template": written}}


def broken_job_name(name: str, spec: Json) -> Iterator[Broken]:
    """Yield why pods of a Job called ``name`` could not be named after it, nor have it as a label."""
    if len(name) > _LONGEST_NAME and not spec.get("manualSelector"):
        rule = f"must be no more than {_LONGEST_NAME} characters, as a label of its pods"
        yield "metadata.name", f"Invalid value: {shown(name)}: {rule}"
    elif name and spec.get("completionMode") == "Indexed" and spec.get("completions", 1) > 0:
        last = f"{name}-{spec.get('completions', 1) - 1:.0f}"
        if broken_label_name(last):
            rule = f"a pod of it could not be called {last}, which is no RFC 1123 label"
            yield "metadata.name", f"Invalid value: {shown(name)}: {rule}"


def broken_job_labels(path: str, spec: Json, name: str = "") -> Iterator[Broken]:
    """Yield labels of the pods of the Job spec at ``path`` that a Job sets itself; ``name`` is the Job's, "" if open.

    One of its name may be there; nobody knows the UID before.
    """
    labels = (spec.get("template") or {}).get("metadata", {}).get("labels", {})
    for label in () if spec.get("manualSelector") else (*JOB_NAMES, *JOB_UIDS):
        if label in labels and not (label in JOB_NAMES and name and labels[label] == name):
            rule = f"must be {shown(name)}, which the Job sets itself" if label in JOB_NAMES and name else ""
            said = rule or "the Job sets it itself: leave it out"
            yield f"{path}.template.metadata.labels[{shown(label)}]", f"Invalid value: {shown(labels[label])}: {said}"


def broken_job_spec(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with the numbers and policies of the Job spec at ``path``."""
    if spec.get("activeDeadlineSeconds") == 0:
        yield f"{path}.activeDeadlineSeconds", "Invalid value: 0: the Job fails at once, before it has a pod"
    indexed = spec.get("completionMode") == "Indexed"
    for field in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
        if field in spec and not indexed:
            yield f"{path}.{field}", "Invalid value: requires indexed completion mode"
    if "maxFailedIndexes" in spec:
        if "backoffLimitPerIndex" not in spec:
            yield f"{path}.backoffLimitPerIndex", "Required value: when maxFailedIndexes is specified"
        # A Job that says neither how many pods it has nor how many at a time has one.
        alone = path == "spec" and "parallelism" not in spec
        completions = spec.get("completions", 1 if alone else spec["maxFailedIndexes"])
        if spec["maxFailedIndexes"] > completions:
            most = f"must be less than or equal to completions ({completions})"
            yield f"{path}.maxFailedIndexes", f"Invalid value: {spec['maxFailedIndexes']}: {most}"
    if indexed:
        yield from _large(path, spec)
    manager = spec.get("managedBy")
    if manager is not None:
        domain, slash, rest = manager.partition("/")
        if not slash or not rest or broken_subdomain(domain) or len(manager) > _LONGEST_NAME:
            rule = f"must be a path behind a domain, such as acme.io/foo, of no more than {_LONGEST_NAME} characters"
            yield f"{path}.managedBy", f"Invalid value: {shown(manager)}: {rule}"
    yield from _failures(f"{path}.podFailurePolicy", spec)
    if indexed:
        yield from _successes(f"{path}.successPolicy", spec)


def _large(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with the numbers of an Indexed Job that has very many pods."""
    many = "backoffLimitPerIndex" in spec and spec.get("completions", 0) > _MANY_COMPLETIONS
    if many and "maxFailedIndexes" not in spec:
        yield f"{path}.maxFailedIndexes", f"Required value: when completions is above {_MANY_COMPLETIONS}"
    for field in ("parallelism", "maxFailedIndexes"):
        number, most = spec.get(field, 0), _FEW_OF_MANY if many else _MANY_COMPLETIONS
        if number > most:
            why = f", since completions are above {_MANY_COMPLETIONS}" if many else ""
            yield f"{path}.{field}", f"Invalid value: {number}: must be less than or equal to {most}{why}"


def _failures(path: str, spec: Json) -> Iterator[Broken]:
    if "podFailurePolicy" not in spec:
        return
    pod = spec.get("template", {}).get("spec", {})
    if pod.get("restartPolicy") != "Never":
        where = f"{path.rpartition('.')[0]}.template.spec.restartPolicy"
        said = f"Invalid value: {shown(pod.get('restartPolicy', ''))}"
        yield where, f'{said}: only "Never" is supported when podFailurePolicy is specified'
    if spec.get("podReplacementPolicy", "Failed") != "Failed":
        where = f"{path.rpartition('.')[0]}.podReplacementPolicy"
        said = f"Unsupported value: {shown(spec['podReplacementPolicy'])}"
        yield where, f'{said}: only "Failed" is supported when podFailurePolicy is specified'
    containers = {each["name"] for kind in ("initContainers", "containers") for each in pod.get(kind, ())}
    rules = spec["podFailurePolicy"].get("rules", ())
    if len(rules) > _MOST_RULES:
        yield f"{path}.rules", f"Too many: {len(rules)}: must have at most {_MOST_RULES} items"
    for i, rule in enumerate(rules):
        where = f"{path}.rules[{i}]"
        if rule["action"] == "FailIndex" and "backoffLimitPerIndex" not in spec:
            yield f"{where}.action", 'Invalid value: "FailIndex": requires the backoffLimitPerIndex to be set'
        if ("onExitCodes" in rule) == bool(rule.get("onPodConditions")):
            yield where, "Invalid value: must specify exactly one of onExitCodes and onPodConditions"
        if "onExitCodes" in rule:
            yield from _exit_codes(f"{where}.onExitCodes", rule["onExitCodes"], containers)


def _exit_codes(path: str, codes: Json, containers: set[str]) -> Iterator[Broken]:
    values = codes["values"]
    if codes["operator"] == "In" and 0 in values:
        yield f"{path}.values", "Invalid value: 0: must not be 0 for the In operator"
    if len(values) > _MOST_VALUES:
        yield f"{path}.values", f"Too many: {len(values)}: must have at most {_MOST_VALUES} items"
    if list(values) != sorted(set(values)):
        yield f"{path}.values", "Invalid value: must be ordered, and each value there once"
    name = codes.get("containerName")
    if name is not None and name not in containers:
        yield f"{path}.containerName", f"Invalid value: {shown(name)}: must be a container of the template"


def _successes(path: str, spec: Json) -> Iterator[Broken]:
    completions = int(spec.get("completions", 1))
    for i, rule in enumerate(spec.get("successPolicy", {}).get("rules", ())):
        where = f"{path}.rules[{i}]"
        count, indexes = rule.get("succeededCount"), rule.get("succeededIndexes")
        if count is None and indexes is None:
            yield where, "Required value: at least one of succeededCount or succeededIndexes must be specified"
        if count is not None and not 0 <= count <= completions:
            most = f"must be 0 to {completions}, which is how many completions there are"
            yield f"{where}.succeededCount", f"Invalid value: {count}: {most}"
        if indexes is not None and not _are_indexes(indexes, completions):
            rule_ = f"must be indexes and ranges of them in rising order below {completions}, as 0,2-3"
            yield f"{where}.succeededIndexes", f"Invalid value: {shown(indexes)}: {rule_}"
        elif indexes is not None and count is not None and count > (named := _how_many(indexes)):
            most = f"must be no more than {named}, which is how many indexes succeededIndexes has"
            yield f"{where}.succeededCount", f"Invalid value: {count}: {most}"


def _how_many(indexes: str) -> int:
    ends = [part.split("-") for part in indexes.split(",")] if indexes else []
    return sum(int(each[-1]) - int(each[0]) + 1 for each in ends)


def _are_indexes(text: str, completions: int) -> bool:
    before = -1
    for part in text.split(",") if text else ():
        ends = part.split("-")
        if len(ends) > 2 or not all(end.isascii() and end.isdecimal() and len(end) < 10 for end in ends):
            return False
        first, last = int(ends[0]), int(ends[-1])
        if not before < first or (len(ends) == 2 and not first < last) or last >= completions:
            return False
        before = last
    return True
