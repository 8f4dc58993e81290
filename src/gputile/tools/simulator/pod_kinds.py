"""Custom kinds that make pods: a table of the paths of their templates and of their replica counts.

The table is ``pod_kinds.yaml``; people add to it by a file of the same form.
"""

import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import msgspec

from gputile.api.misfit import convert
from gputile.api.wording import kind_of, nearest, shown
from gputile.support.yaml_loader import load_document
from gputile.tools.simulator.description import API_VERSION
from gputile.tools.simulator.manifests import Manifest, Origin, load_manifests
from gputile.tools.simulator.object_rules import Json

KIND: Final = "PodKinds"
MOST_PODS_OF_A_TEMPLATE: Final = 100_000
_EACH: Final = "*"
_KEYS: Final = ("name", "groupName")  # the field that names an entry of a list

Step = str | int
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class _TableSection(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A part of a file that people write: an unknown field is an error, since it may be a typing mistake."""


class Count(_TableSection, frozen=True):
    """A number in the object: what stands at ``path``, ``default`` where nothing does, and ``plus`` added.

    It is no less than what stands at ``least``, and no more than what stands at ``most``, where these are there.
    """

    path: Annotated[Path, msgspec.Meta(description="Where the number stands in the object.")]
    default: Annotated[int, msgspec.Meta(description="The number where nothing stands there.")] = 1
    plus: Annotated[int, msgspec.Meta(description="What is added to it.")] = 0
    least: Annotated[str, msgspec.Meta(description="Where a number stands that it is no less than.")] = ""
    most: Annotated[str, msgspec.Meta(description="Where a number stands that it is no more than.")] = ""

    def paths(self) -> Iterator[str]:
        """Yield where its numbers stand."""
        yield from filter(None, (self.path, self.least, self.most))


class PodsOfKind(_TableSection, frozen=True):
    """Pods that a kind makes: a template, and numbers whose product is how many there are of it.

    In a path "*" stands for each entry of a list or mapping; a number's "*" is the same entry as the template's.
    ``otherwise`` is where the template stands if it is not at ``template``. In ``name`` and ``labels``, ``{name}`` is
    the object's name, ``{key}`` the entry's, and ``{number}`` counts the pods of the template.
    """

    template: Annotated[
        Path, msgspec.Meta(description="Where the template of the pods stands; * is each entry of a list or mapping.")
    ]
    otherwise: Annotated[str, msgspec.Meta(description="Where it stands if not there.")] = ""
    count: Annotated[
        tuple[Path | Count, ...],
        msgspec.Meta(description="Numbers whose product is how many pods of the template there are, by their paths."),
    ] = ()
    name: Annotated[
        str,
        msgspec.Meta(
            description="Names of the pods: {name} is the object's, {key} the entry's, {number} counts the pods."
        ),
    ] = ""
    labels: Annotated[
        dict[str, str],
        msgspec.Meta(description="Labels that the kind's controller adds to the pods, with the same braces."),
    ] = {}


class PodKind(_TableSection, frozen=True):
    """A kind; one without ``pods`` makes none. ``suspended`` is the path of what holds its pods back while true.

    ``owned`` are labels that identify its pods if their controller is another object. ``template_of`` is the path of
    what names another object, of one of Kubernetes' kinds, whose template it takes where it has none of its own.
    """

    api_version: Annotated[str, msgspec.Meta(description="The kind's apiVersion.")]
    kind: Annotated[str, msgspec.Meta(description="The kind.")]
    pods: Annotated[
        tuple[PodsOfKind, ...], msgspec.Meta(description="The pods that an object of it makes; none: it makes none.")
    ] = ()
    suspended: Annotated[str, msgspec.Meta(description="Where the object says that its pods are held back.")] = ""
    owned: Annotated[
        dict[str, str],
        msgspec.Meta(description="Labels by which its pods are known where their controller is another object."),
    ] = {}
    template_of: Annotated[
        str, msgspec.Meta(description="Where the object names one of Kubernetes' kinds whose template its pods have.")
    ] = ""


class KindsTable(_TableSection, frozen=True):
    """The whole table."""

    api_version: Annotated[Literal["gputile.io/v1alpha1"], msgspec.Meta(description="The version of this file.")]
    kind: Annotated[Literal["PodKinds"], msgspec.Meta(description="What this file is.")]
    kinds: Annotated[tuple[PodKind, ...], msgspec.Meta(description="The kinds.")]


@dataclass(frozen=True, slots=True)
class Group:
    """The pods of one template: ``template`` is as written, and stands at ``path``."""

    path: str
    template: Json
    count: int
    rule: PodsOfKind
    key: str

    def name(self, owner: str, number: int) -> str:
        """Return the name of pod ``number``."""
        pattern = self.rule.name or ("{name}-{key}-{number}" if self.key else "{name}-{number}")
        if "{number}" not in pattern and self.count > 1:
            pattern += "-{number}"
        return self._filled(pattern, owner, number)

    def labels(self, owner: str, number: int) -> dict[str, str]:
        """Return what its controller adds to the labels of pod ``number``."""
        return {label: self._filled(text, owner, number) for label, text in self.rule.labels.items()}

    def _filled(self, pattern: str, owner: str, number: int) -> str:
        filled = pattern.replace("{name}", owner).replace("{key}", self.key)
        return filled.replace("{number}", str(number))


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
        _check(manifest.origin, tables[-1])
    for table in tables:
        found.kinds |= {(each.api_version, each.kind): each for each in table.kinds}
    return found


def groups(manifest: Manifest, kind: PodKind) -> list[Group]:
    """Return the templates of an object and how many pods it makes of each.

    Raises:
        ManifestError: there is none, or a number is not one.
    """
    found = []
    for rule in kind.pods:
        places = list(_at(manifest.body, rule.template)) or list(_at(manifest.body, rule.otherwise))
        for place in places:
            path = _written(place.steps)
            if not isinstance(place.value, dict):
                raise manifest.origin.error(path, f"must be a mapping, is {kind_of(place.value)}")
            count = _product(manifest.origin, manifest.body, rule, place.keys)
            found.append(Group(path, place.value, count, rule, place.name))
    if kind.pods and not found:
        path, why = _missing(manifest.body, kind.pods[0].template)
        raise manifest.origin.error(path, why)
    return found


@dataclass(frozen=True, slots=True)
class Reference:
    """The kind and name of an object whose template another one takes."""

    kind: str
    name: str


def template_reference(manifest: Manifest, kind: PodKind) -> Reference | None:
    """Return what an object without a template of its own names instead; None where it has one, or names nothing.

    Raises:
        ManifestError: what it names has no kind or name.
    """
    own = any(place for rule in kind.pods for place in _at(manifest.body, rule.template))
    place = next(_at(manifest.body, kind.template_of), None)
    if own or place is None:
        return None
    named = place.value if isinstance(place.value, dict) else {}
    for key in ("kind", "name"):
        if not isinstance(named.get(key), str) or not named[key]:
            raise manifest.origin.error(f"{_written(place.steps)}.{key}", "must be there, as a string")
    return Reference(named["kind"], named["name"])


def with_template(manifest: Manifest, kind: PodKind, template: Json) -> Manifest:
    """Return an object with a template where its kind has the first one."""
    *before, last = kind.pods[0].template.split(".")
    body = dict(manifest.body)
    place = body
    for step in before:
        place[step] = dict(place.get(step, {}))
        place = place[step]
    place[last] = template
    return replace(manifest, body=body)


def is_suspended(manifest: Manifest, kind: PodKind) -> bool:
    """Return whether an object holds its pods back."""
    return any(place.value is True for place in _at(manifest.body, kind.suspended))


def _check(origin: Origin, table: KindsTable) -> None:
    for i, kind in enumerate(table.kinds):
        for j, rule in enumerate(kind.pods):
            for path in (path for count in rule.count for path in _count(count).paths()):
                if path.split(".").count(_EACH) > rule.template.split(".").count(_EACH):
                    where = f"kinds[{i}].pods[{j}].count"
                    raise origin.error(where, f"{shown(path)} has more '*' than the template's path")


@dataclass(frozen=True, slots=True)
class _Place:
    """What stands at a path: the steps to it, those that "*" stood for, and what the last such entry is called."""

    steps: tuple[Step, ...]
    keys: tuple[Step, ...]
    name: str
    value: Any


def _at(body: Any, path: str) -> Iterator[_Place]:
    """Yield what stands at a path, "" for nowhere."""
    if path:
        yield from _walk(_Place((), (), "", body), path.split("."))


def _walk(place: _Place, path: Sequence[str]) -> Iterator[_Place]:
    value = place.value
    if not path:
        if value is not None:
            yield place
    elif path[0] == _EACH:
        for key, item in _entries(value):
            yield from _walk(_Place((*place.steps, key), (*place.keys, key), _called(key, item), item), path[1:])
    elif isinstance(value, dict):
        yield from _walk(_Place((*place.steps, path[0]), place.keys, place.name, value.get(path[0])), path[1:])


def _entries(value: Any) -> Iterable[tuple[Step, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _called(key: Step, entry: Any) -> str:
    """Return what an entry is called: its key, in a list its name, or its number where it has none."""
    names: Mapping[str, Any] = entry if isinstance(entry, dict) and isinstance(key, int) else {}
    called = next((names[each] for each in _KEYS if isinstance(names.get(each), str)), str(key))
    return called.lower()[:63]


def _product(origin: Origin, body: Json, rule: PodsOfKind, keys: Sequence[Step]) -> int:
    total = 1
    for each in rule.count:
        count = _count(each)
        value = _number(origin, body, count.path, keys, count.default)
        least = _number(origin, body, count.least, keys, 0)
        most = _number(origin, body, count.most, keys, max(value, least))
        if least > most:
            path, what = _bound(body, count.most, keys)[1], count.least.rpartition(".")[2]
            raise origin.error(path, f"{most} is less than {what}, {least}: how many pods there are cannot be judged")
        value = min(max(value, least), most)
        if value > MOST_PODS_OF_A_TEMPLATE:
            path = _bound(body, count.path, keys)[1]
            raise origin.error(path, f"{str(value)[:30]} is not in 0 to {MOST_PODS_OF_A_TEMPLATE:,}")
        total *= max(0, value + count.plus)
    if total > MOST_PODS_OF_A_TEMPLATE:
        raise origin.error("", f"{total:,} pods of one template are more than {MOST_PODS_OF_A_TEMPLATE:,}")
    return total


def _count(written: Path | Count) -> Count:
    return Count(path=written) if isinstance(written, str) else written


def _number(origin: Origin, body: Json, path: str, keys: Sequence[Step], default: int) -> int:
    """Return the number at a path whose "*" are ``keys``, ``default`` where nothing stands there."""
    value, where = _bound(body, path, keys) if path else (None, "")
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise origin.error(where, f"must be a whole number, is {kind_of(value)}")
    if value < 0:
        raise origin.error(where, f"{str(value)[:30]} is not in 0 to {MOST_PODS_OF_A_TEMPLATE:,}")
    return value


def _bound(body: Any, path: str, keys: Sequence[Step]) -> tuple[Any, str]:
    """Return what stands at a path whose "*" are ``keys``, None where nothing does; and the path."""
    rest, steps, value = list(keys), list[Step](), body
    for name in path.split("."):
        step = rest.pop(0) if name == _EACH and rest else name
        steps.append(step)
        if isinstance(value, list) and isinstance(step, int):
            value = value[step]
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value, _written(steps)


def _missing(body: Any, path: str) -> tuple[str, str]:
    """Return the last path of a template that exists, and why the next step fails."""
    value, steps = body, list[Step]()
    for name in path.split("."):
        if name == _EACH or not isinstance(value, dict) or name not in value:
            break
        steps.append(name)
        value = value[name]
    lacking = path.split(".")[len(steps)]
    where = _written(steps)
    there = value if isinstance(value, dict) and lacking != _EACH else ()
    similar = next((shown(name)[1:-1] for name in there if nearest(name, [lacking])), "")
    hint = f"; there is {similar}: did you mean {lacking}?" if similar else ""
    what = "an entry" if lacking == _EACH else lacking
    return where, f"there is no template of pods: {what} is missing (it stands at {path}){hint}"


def _written(steps: Iterable[Step]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
