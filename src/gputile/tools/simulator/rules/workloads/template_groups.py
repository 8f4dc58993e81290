"""Counts and names the pods that an object of a custom kind makes of its templates."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gputile.api.wording import kind_of
from gputile.tools.simulator.documents.manifests import Manifest, Origin
from gputile.tools.simulator.documents.paths import EACH, FieldAt, Step, bound, missing, places_at, written
from gputile.tools.simulator.rules.values.fields import Json
from gputile.tools.simulator.rules.workloads.pod_kinds import PodKind, PodsOfKind, filled

MOST_PODS_OF_A_TEMPLATE: Final = 100_000
_LONGEST_KEY: Final = 63  # characters of it in a pod's name


@dataclass(frozen=True, slots=True)
class Group:
    """The pods of one template: ``template`` is as written, and stands at ``steps``. ``jobs`` is how many Jobs."""

    steps: tuple[Step, ...]
    template: Json
    count: int
    jobs: int
    rule: PodsOfKind
    key: str

    @property
    def path(self) -> str:
        """Where the template stands, as messages show it."""
        return written(self.steps)

    def name(self, owner: str, number: int) -> str:
        """Return the name of pod ``number``."""
        pattern = self.rule.name or ("{name}-{key}-{number}" if self.key else "{name}-{number}")
        if "{number}" not in pattern and self.count > 1:
            pattern += "-{number}"
        return filled(pattern, owner, self.key.lower()[:_LONGEST_KEY], number)

    def labels(self, owner: str, number: int) -> dict[str, str]:
        """Return what its controller adds to the labels of pod ``number``."""
        return {label: filled(text, owner, self.key, number) for label, text in self.rule.labels.items()}

    def made_name(self, owner: str) -> str:
        """Return the longest name of the objects that make the pods, "" where that is not known."""
        named = self.rule.made_by.name if self.rule.made_by is not None else ""
        return filled(named, owner, self.key, max(0, self.jobs - 1))

    def job_name(self, owner: str, number: int) -> str:
        """Return the name of the Job ``number``, as its controller makes it of what is written; "" without Jobs."""
        return filled(self.rule.job_name, owner, self.key, number)


def groups(manifest: Manifest, kind: PodKind) -> list[Group]:
    """Return the templates of an object and how many pods it makes of each.

    Raises:
        ManifestError: there is none, or a number is not one.
    """
    found = []
    rules = [rule for rule in kind.pods if not _uses_others(manifest.body, rule) and _makes(manifest.body, rule)]
    for rule in rules:
        places = list(places_at(manifest.body, rule.template)) or list(places_at(manifest.body, rule.otherwise))
        if not places and rule.default is not None:
            places = [FieldAt(tuple(rule.template.split(".")), (), "", rule.default)]
        for place in places:
            if not isinstance(place.value, dict):
                raise manifest.origin.error(written(place.steps), f"must be a mapping, is {kind_of(place.value)}")
            numbers = list(_numbers(manifest.origin, manifest.body, rule, place.keys))
            stopped = bool(rule.suspended) and bound(manifest.body, rule.suspended, place.keys)[0] is True
            count = 0 if stopped else math.prod(numbers)
            if count > MOST_PODS_OF_A_TEMPLATE:
                many = f"{count:,} pods of one template are more than {MOST_PODS_OF_A_TEMPLATE:,}"
                raise manifest.origin.error("", many)
            template = _as_its_controller_makes(manifest.body, kind, rule, place.value)
            found.append(Group(place.steps, template, count, next(iter(numbers), 1), rule, place.name))
    if not found and rules:
        first = rules[0].template
        path, why = missing(manifest.body, first, first)
        raise manifest.origin.error(path, why)
    for rule in rules:
        _check_entries(manifest, rule)
    return found


def used_instead(manifest: Manifest, kind: PodKind) -> str:
    """Return where an object names another one whose pods it uses, "" where it makes all of its pods."""
    return next((rule.unless for rule in kind.pods if _uses_others(manifest.body, rule)), "")


def _name_of(claim: Any) -> str:
    metadata = claim.get("metadata") if isinstance(claim, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _makes(body: Json, rule: PodsOfKind) -> bool:
    return rule.when is None or rule.when.holds(body)


def _uses_others(body: Json, rule: PodsOfKind) -> bool:
    return any(place.value for place in places_at(body, rule.unless))


def _as_its_controller_makes(body: Json, kind: PodKind, rule: PodsOfKind, template: Json) -> Json:
    """Return a template with the scheduler and the container that the controller gives to its pods."""
    spec = template.get("spec")
    if not isinstance(spec, dict):
        return template
    scheduler, containers = kind.scheduler, spec.get("containers")
    if scheduler is not None and not spec.get("schedulerName"):
        named = next((place.value for place in places_at(body, scheduler.path)), "")
        spec = {**spec, "schedulerName": named or scheduler.default}
    first = containers[0] if isinstance(containers, list) and containers else None
    for added in (each for each in rule.added if isinstance(first, dict) and each.when.holds(body)):
        written = next((place.value for place in places_at(body, added.resources)), None)
        resources = written or {"limits": added.limits, "requests": added.requests}
        container = {"name": added.name, "image": (first or {}).get("image", ""), "resources": resources}
        spec = {**spec, "containers": [*spec["containers"], container]}
    volumes = spec.get("volumes", [])
    if rule.claims and isinstance(volumes, list):
        names = (_name_of(place.value) for place in places_at(body, f"{rule.claims}.{EACH}"))
        had = {each.get("name") for each in volumes if isinstance(each, dict)}
        more = [
            {"name": n, "persistentVolumeClaim": {"claimName": n}} for n in dict.fromkeys(names) if n and n not in had
        ]
        spec = {**spec, "volumes": [*volumes, *more]} if more else spec
    return template if spec is template["spec"] else {**template, "spec": spec}


def _check_entries(manifest: Manifest, rule: PodsOfKind) -> None:
    """Refuse an entry without a template: its pods would be missing in the answer."""
    before, each, after = rule.template.rpartition(f".{EACH}.")
    if not each or rule.otherwise:
        return
    for entry in places_at(manifest.body, f"{before}.{EACH}"):
        if not any(places_at(entry.value, after)):
            path, why = missing(entry.value, after, rule.template)
            where = written(entry.steps) + (f".{path}" if path else "")
            raise manifest.origin.error(where, why)


def is_suspended(manifest: Manifest, kind: PodKind) -> bool:
    """Return whether an object holds its pods back."""
    return _is_true(manifest.body, kind.suspended) or any(places_at(manifest.body, kind.stopped))


def _is_true(body: Json, path: str) -> bool:
    return any(place.value is True for place in places_at(body, path))


def _numbers(origin: Origin, body: Json, rule: PodsOfKind, keys: Sequence[Step]) -> Iterator[int]:
    """Yield the numbers whose product is how many pods there are of a template."""
    for count in rule.counts():
        value = _number(origin, body, count.path, keys, count.default)
        least = _number(origin, body, count.least, keys, 0)
        most = _number(origin, body, count.most, keys, max(value, least))
        if least > most:
            path, what = bound(body, count.most, keys)[1], count.least.rpartition(".")[2]
            raise origin.error(path, f"{most} is less than {what}, {least}: how many pods there are cannot be judged")
        if value < count.minimum:
            path = bound(body, count.path, keys)[1]
            raise origin.error(path, f"Invalid value: {value}: must be {count.minimum} or more")
        value = min(max(value, least), most)
        if value > MOST_PODS_OF_A_TEMPLATE:
            path = bound(body, count.path, keys)[1]
            raise origin.error(path, f"{str(value)[:30]} is not in 0 to {MOST_PODS_OF_A_TEMPLATE:,}")
        yield max(0, value + count.plus)


def _number(origin: Origin, body: Json, path: str, keys: Sequence[Step], default: int) -> int:
    """Return the number at a path whose "*" are ``keys``, ``default`` where nothing stands there."""
    value, where = bound(body, path, keys) if path else (None, "")
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise origin.error(where, f"must be a whole number, is {kind_of(value)}")
    if value < 0:
        raise origin.error(where, f"{str(value)[:30]} is not in 0 to {MOST_PODS_OF_A_TEMPLATE:,}")
    return value
