"""Finds the pod templates of a custom object, and counts and names the pods of each."""

import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gputile.api.wording import kind_of, shown
from gputile.tools.simulator.fields import Broken, Json
from gputile.tools.simulator.manifests import Manifest, Origin
from gputile.tools.simulator.pod_kinds import (
    EACH,
    PodKind,
    PodsOfKind,
    Step,
    bound,
    entries,
    filled,
    missing,
    places_at,
    written,
)

MOST_PODS_OF_A_TEMPLATE: Final = 100_000
_EXCLUSIVE: Final = "exclusive-topology"  # alpha.jobset.sigs.k8s.io/..., leaderworkerset.sigs.k8s.io/subgroup-...
_ALIKE: Final = 0.8  # how much of two names is the same if one is the other one mistyped
_Known = dict[str, "_Known"]
_LONGEST_KEY: Final = 63  # characters of it in a pod's name


@dataclass(frozen=True, slots=True)
class Group:
    """The pods of one template: ``template`` is as written, and stands at ``steps``."""

    steps: tuple[Step, ...]
    template: Json
    count: int
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


def broken_custom(manifest: Manifest, kind: PodKind) -> Iterator[Broken]:
    """Yield mistyped fields that lead to templates and numbers, and annotations that ask for what is not judged."""
    yield from _mistyped(manifest.body, _fields(_paths(kind)), ())
    yield from _exclusive(manifest.body, ())


def groups(manifest: Manifest, kind: PodKind) -> list[Group]:
    """Return the templates of an object and how many pods it makes of each.

    Raises:
        ManifestError: there is none, or a number is not one.
    """
    found = []
    rules = [rule for rule in kind.pods if not _uses_others(manifest.body, rule)]
    for rule in rules:
        places = list(places_at(manifest.body, rule.template)) or list(places_at(manifest.body, rule.otherwise))
        if not places and EACH not in rule.template:
            raise manifest.origin.error(*missing(manifest.body, rule.template, rule.template))
        for place in places:
            if not isinstance(place.value, dict):
                raise manifest.origin.error(written(place.steps), f"must be a mapping, is {kind_of(place.value)}")
            stopped = bool(rule.suspended) and bound(manifest.body, rule.suspended, place.keys)[0] is True
            count = 0 if stopped else math.prod(_numbers(manifest.origin, manifest.body, rule, place.keys))
            if count > MOST_PODS_OF_A_TEMPLATE:
                many = f"{count:,} pods of one template are more than {MOST_PODS_OF_A_TEMPLATE:,}"
                raise manifest.origin.error("", many)
            found.append(Group(place.steps, place.value, count, rule, place.name))
    if not found and rules:
        raise manifest.origin.error(*missing(manifest.body, rules[0].template, rules[0].template))
    for rule in rules:
        _check_entries(manifest, rule)
    return found


def used_instead(manifest: Manifest, kind: PodKind) -> str:
    """Return where an object names another one whose pods it uses, "" where it makes all of its pods."""
    return next((rule.unless for rule in kind.pods if _uses_others(manifest.body, rule)), "")


def _uses_others(body: Json, rule: PodsOfKind) -> bool:
    return any(place.value for place in places_at(body, rule.unless))


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
    body = manifest.body
    return any(place.value is True for place in places_at(body, kind.suspended)) or any(places_at(body, kind.stopped))


def _numbers(origin: Origin, body: Json, rule: PodsOfKind, keys: Sequence[Step]) -> Iterator[int]:
    """Yield the numbers whose product is how many pods there are of a template."""
    for count in rule.counts():
        value = _number(origin, body, count.path, keys, count.default)
        least = _number(origin, body, count.least, keys, 0)
        most = _number(origin, body, count.most, keys, max(value, least))
        if least > most:
            path, what = bound(body, count.most, keys)[1], count.least.rpartition(".")[2]
            raise origin.error(path, f"{most} is less than {what}, {least}: how many pods there are cannot be judged")
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


def _paths(kind: PodKind) -> Iterator[str]:
    """Yield the paths of an object that the table knows."""
    for rule in kind.pods:
        yield from (rule.template, rule.otherwise, rule.unless, rule.suspended)
        for count in rule.counts():
            yield from count.paths()
    yield kind.suspended


def _fields(paths: Iterable[str]) -> _Known:
    """Return the fields on ``paths``, each with those below it."""
    known: _Known = {}
    for path in filter(None, paths):
        below = known
        for step in path.split("."):
            below = below.setdefault(step, {})
    return known


def _mistyped(value: Any, known: _Known, steps: tuple[Step, ...]) -> Iterator[Broken]:
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


def _exclusive(value: Any, steps: tuple[Step, ...]) -> Iterator[Broken]:
    """Yield the annotations by which JobSets and LeaderWorkerSets ask for topology domains of their own.

    Their webhooks write affinities for that into the pods, which differ from Job to Job and are not known here.
    """
    for step, entry in entries(value):
        if step == "annotations" and isinstance(entry, dict):
            for name in filter(lambda name: str(name).endswith(_EXCLUSIVE), entry):
                rule = "which domains its pods get is not judged here: leave the annotation out"
                yield f"{written((*steps, step))}[{shown(str(name))}]", f"{rule} to see where they fit without it"
        else:
            yield from _exclusive(entry, (*steps, step))
