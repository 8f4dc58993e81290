"""Reads the table of custom kinds that make pods: paths of their templates and replica counts.

The table is ``pod_kinds.yaml``; people add to it by a file of the same form.
"""

import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec

from gputile.api.conversion import convert
from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.wording import described, nearest, shown
from gputile.support.yaml_loader import load_document
from gputile.tools.simulator.described_cluster import API_VERSION
from gputile.tools.simulator.manifests import Manifest, ManifestError, load_manifests
from gputile.tools.simulator.names import broken_labels

KIND: Final = "PodKinds"
Step = str | int
EACH: Final = "*"
_KEYS: Final = ("name", "groupName")  # the field that names an entry of a list
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class _TableSection(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A part of a file that people write: an unknown field is an error, since it may be a typing mistake."""


class Count(_TableSection, frozen=True):
    """A number in the object: what stands at ``path``, ``default`` where nothing does, and ``plus`` added.

    It is no less than what stands at ``least``, and no more than what stands at ``most``, where these are there.
    """

    path: Annotated[Path, described("Where the number stands in the object.")]
    default: Annotated[int, described("The number where nothing stands there.", ge=0)] = 1
    plus: Annotated[int, described("What is added to it.")] = 0
    least: Annotated[str, described("Where a number stands that it is no less than.")] = ""
    most: Annotated[str, described("Where a number stands that it is no more than.")] = ""

    def paths(self) -> Iterator[str]:
        """Yield where its numbers stand."""
        yield from filter(None, (self.path, self.least, self.most))


class PodsOfKind(_TableSection, frozen=True):
    """Pods that a kind makes: a template, and numbers whose product is how many there are of it.

    In a path "*" stands for each entry of a list or mapping; a number's "*" is the same entry as the template's.
    ``otherwise`` is where the template stands if it is not at ``template``. In ``name`` and ``labels``, ``{name}``
    is the object's name, ``{key}`` the entry's, and ``{number}`` counts the pods of the template. Where anything stands
    at ``unless``, the object uses pods of another one, and needs no such template. ``suspended`` is where an entry says
    by true that it has no pods.
    """

    template: Annotated[Path, described("Where the template of the pods stands; * is each entry of a list or mapping.")]
    otherwise: Annotated[str, described("Where it stands if not there.")] = ""
    count: Annotated[
        tuple[Path | Count, ...],
        described("Numbers whose product is how many pods of the template there are, by their paths."),
    ] = ()
    name: Annotated[
        str, described("Names of the pods: {name} is the object's, {key} the entry's, {number} counts the pods.")
    ] = ""
    labels: Annotated[
        dict[str, str], described("Labels that the kind's controller adds to the pods, with the same braces.")
    ] = {}
    unless: Annotated[str, described("Where the object names another one whose pods it uses instead of these.")] = ""
    suspended: Annotated[str, described("Where an entry says that it has no pods.")] = ""
    claims: Annotated[
        str, described("Where templates of claims stand, each of which is a volume of the pods, too.")
    ] = ""

    def counts(self) -> Iterator[Count]:
        """Yield the numbers whose product is how many pods there are."""
        yield from (Count(path=each) if isinstance(each, str) else each for each in self.count)


class PodKind(_TableSection, frozen=True):
    """A kind; one without ``pods`` makes none.

    ``suspended`` is the path of what holds its pods back while true, ``stopped`` of what does so by being there.
    ``owned`` are labels that identify its pods if their controller is another object.
    """

    api_version: Annotated[str, described("The kind's apiVersion.")]
    kind: Annotated[str, described("The kind.")]
    pods: Annotated[tuple[PodsOfKind, ...], described("The pods that an object of it makes; none: it makes none.")] = ()
    suspended: Annotated[str, described("Where the object says that its pods are held back.")] = ""
    stopped: Annotated[str, described("Where anything stands while its pods are held back.")] = ""
    owned: Annotated[
        dict[str, str], described("Labels by which its pods are known where their controller is another object.")
    ] = {}


class KindsTable(_TableSection, frozen=True):
    """The whole table."""

    api_version: Annotated[Literal["gputile.io/v1alpha1"], described("The version of this file.")]
    kind: Annotated[Literal["PodKinds"], described("What this file is.")]
    kinds: Annotated[tuple[PodKind, ...], described("The kinds.")]


def filled(pattern: str, owner: str, key: str, number: int) -> str:
    """Return a name or label of the table with ``{name}``, ``{key}`` and ``{number}`` replaced."""
    return pattern.replace("{name}", owner).replace("{key}", key).replace("{number}", str(number))


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
    for manifest in load_manifests(paths):
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
        yield from broken_labels(f"{where}.owned", {key: filled(text, "x", "x", 0) for key, text in kind.owned.items()})
        for j, rule in enumerate(kind.pods):
            yield from _broken_pods(f"{where}.pods[{j}]", rule)


def _broken_pods(where: str, rule: PodsOfKind) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with an entry that stands at ``where``."""
    yield from broken_labels(f"{where}.labels", {key: filled(text, "x", "x", 0) for key, text in rule.labels.items()})
    stars = rule.template.split(".").count(EACH)
    for path in (path for count in rule.counts() for path in count.paths()):
        if path.split(".").count(EACH) > stars:
            yield f"{where}.count", f"{shown(path)} has more '*' than the template's path"


@dataclass(frozen=True, slots=True)
class FieldAt:
    """What stands at a path: the steps to it, those that "*" stood for, and what the last such entry is called."""

    steps: tuple[Step, ...]
    keys: tuple[Step, ...]
    name: str
    value: Any


def places_at(body: Any, path: str) -> Iterator[FieldAt]:
    """Yield what stands at a path, "" for nowhere."""
    if path:
        yield from _walk(FieldAt((), (), "", body), path.split("."))


def _walk(place: FieldAt, path: Sequence[str]) -> Iterator[FieldAt]:
    value = place.value
    if not path:
        if value is not None:
            yield place
    elif path[0] == EACH:
        for key, item in entries(value):
            yield from _walk(FieldAt((*place.steps, key), (*place.keys, key), _called(key, item), item), path[1:])
    elif isinstance(value, dict):
        yield from _walk(FieldAt((*place.steps, path[0]), place.keys, place.name, value.get(path[0])), path[1:])


def entries(value: Any) -> Iterable[tuple[Step, Any]]:
    """Return the entries of a list or mapping, with their numbers or keys."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _called(key: Step, entry: Any) -> str:
    """Return what an entry is called: its key in small letters, in a list its name, or its number if it has none."""
    if isinstance(key, str):
        return key.lower()
    names: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    return next((names[each] for each in _KEYS if isinstance(names.get(each), str)), str(key))


def bound(body: Any, path: str, keys: Sequence[Step]) -> tuple[Any, str]:
    """Return what stands at a path whose "*" are ``keys``, None where nothing does; and the path."""
    rest, steps, value = list(keys), list[Step](), body
    for name in path.split("."):
        step = rest.pop(0) if name == EACH and rest else name
        steps.append(step)
        if isinstance(value, list) and isinstance(step, int):
            value = value[step]
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value, written(steps)


def missing(body: Any, path: str, whole: str) -> tuple[str, str]:
    """Return the last part of ``path`` that exists in ``body``, and why the next step of the ``whole`` path fails."""
    value, steps = body, list[Step]()
    for name in path.split("."):
        if name == EACH or not isinstance(value, dict) or name not in value:
            break
        steps.append(name)
        value = value[name]
    lacking = path.split(".")[len(steps)]
    where = written(steps)
    there = value if isinstance(value, dict) and lacking != EACH else ()
    similar = next((shown(name)[1:-1] for name in there if nearest(name, [lacking])), "")
    hint = f"; there is {similar}: did you mean {lacking}?" if similar else ""
    what = "an entry" if lacking == EACH else lacking
    return where, f"there is no template of pods: {what} is missing (it stands at {whole}){hint}"


def written(steps: Iterable[Step]) -> str:
    """Return steps as messages show them: ``spec.tasks[0]``."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
