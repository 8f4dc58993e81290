"""Reads the table of custom kinds that make pods: paths of their templates and replica counts.

The table is ``pod_kinds.yaml``; people add to it by a file of the same form.
"""

import math
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import msgspec

from gputile.api.conversion import convert
from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.wording import kind_of, shown
from gputile.support.yaml_loader import load_document
from gputile.tools.simulator.documents.cluster_description import API_VERSION
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError, Origin, load_manifests
from gputile.tools.simulator.documents.paths import EACH, FieldAt, Step, bound, missing, places_at, written
from gputile.tools.simulator.rules.values.names import broken_labels
from gputile.tools.simulator.rules.workloads.kinds import Json

KIND: Final = "PodKinds"
MOST_PODS_OF_A_TEMPLATE: Final = 100_000
# Where what a Rollout names has its template (rollout/templateref.go of Argo Rollouts), by API group and kind.
TEMPLATES_REFERRED: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("", "PodTemplate"): ("template",),
    ("apps", "Deployment"): ("spec", "template"),
    ("apps", "ReplicaSet"): ("spec", "template"),
}
_IN_A_JOB: Final = ".spec.template"
_LONGEST_KEY: Final = 63  # characters of it in a pod's name

Path = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class _TableSection(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A part of a file that people write: an unknown field is an error, since it may be a typing mistake."""


class Count(_TableSection, frozen=True):
    """A number in the object: what stands at ``path``, ``default`` where nothing does, and ``plus`` added.

    It is no less than what stands at ``least``, and no more than what stands at ``most``, where these are there. A
    number below ``minimum`` is refused.
    """

    path: Annotated[Path, msgspec.Meta(description="Where the number stands in the object.")]
    default: Annotated[int, msgspec.Meta(ge=0, description="The number where nothing stands there.")] = 1
    plus: Annotated[int, msgspec.Meta(description="What is added to it.")] = 0
    least: Annotated[str, msgspec.Meta(description="Where a number stands that it is no less than.")] = ""
    most: Annotated[str, msgspec.Meta(description="Where a number stands that it is no more than.")] = ""
    minimum: Annotated[int, msgspec.Meta(ge=0, description="The smallest number that the kind takes there.")] = 0

    def paths(self) -> Iterator[str]:
        """Yield where its numbers stand."""
        yield from filter(None, (self.path, self.least, self.most))


class Condition(_TableSection, frozen=True, kw_only=True):
    """What holds if ``value`` stands at ``path``; where nothing stands there, ``default`` counts."""

    path: Annotated[Path, msgspec.Meta(description="Where the value stands in the object.")]
    value: Annotated[bool | str, msgspec.Meta(description="What has to stand there.")] = True
    default: Annotated[bool | str, msgspec.Meta(description="What counts where nothing stands there.")] = False

    def holds(self, body: Json) -> bool:
        """Return whether it holds for an object."""
        found = next((place.value for place in places_at(body, self.path)), self.default)
        return type(found) is type(self.value) and bool(found == self.value)


class AddedContainer(_TableSection, frozen=True, kw_only=True):
    """A container that the kind's controller adds to each pod, with the image of the pod's first one."""

    when: Annotated[Condition, msgspec.Meta(description="When there is one.")]
    name: Annotated[str, msgspec.Meta(description="The container's name.")]
    requests: Annotated[dict[str, str], msgspec.Meta(description="What it requests.")] = {}
    limits: Annotated[dict[str, str], msgspec.Meta(description="What it is limited to.")] = {}
    resources: Annotated[str, msgspec.Meta(description="Where resources of it stand that count instead.")] = ""


class Scheduler(_TableSection, frozen=True, kw_only=True):
    """The scheduler of pods whose template names none: what stands at ``path``, else ``default``."""

    default: Annotated[str, msgspec.Meta(description="Its schedulerName.")]
    path: Annotated[str, msgspec.Meta(description="Where another schedulerName stands.")] = ""


class PodsOfKind(_TableSection, frozen=True):
    """Pods that a kind makes: a template, and numbers whose product is how many there are of it.

    In a path "*" stands for each entry of a list or mapping; a number's "*" is the same entry as the template's.
    ``otherwise`` is where the template stands if it is not at ``template``. In ``name`` and ``labels``, ``{name}`` is
    the object's name, ``{key}`` the entry's, and ``{number}`` counts the pods of the template. Pods with a ``job_name``
    are made by Jobs of this name, as many as the first number of ``count``: ``template`` is in the template of a Job.
    Where anything stands at ``unless``, the object uses pods of another one, and needs no such template; nor does it
    where ``when`` does not hold. ``default`` is the template where it has none. ``suspended`` is where an entry says by
    true that it has no pods. Of the entries with a key that is in ``services`` ("*" for all), a Service is called as
    each pod, and those in ``single`` have one pod.
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
    container: Annotated[
        str, msgspec.Meta(description="The name of the container that the kind's controller looks for.")
    ] = ""
    keys: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="Keys that the mapping may have which the last * stands for; none: any."),
    ] = ()
    job_name: Annotated[
        str,
        msgspec.Meta(description="Names of the Jobs that make the pods, with the same braces; {number} counts Jobs."),
    ] = ""

    unless: Annotated[
        str, msgspec.Meta(description="Where the object names another one whose pods it uses instead of these.")
    ] = ""
    when: Annotated[Condition | None, msgspec.Meta(description="When it makes these pods; absent: always.")] = None
    default: Annotated[dict[str, Any] | None, msgspec.Meta(description="The template where the object has none.")] = (
        None
    )
    suspended: Annotated[str, msgspec.Meta(description="Where an entry says that it has no pods.")] = ""
    services: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="Keys of entries for each of whose pods there is a Service of its name; *: all."),
    ] = ()
    single: Annotated[tuple[str, ...], msgspec.Meta(description="Keys of entries that have one pod.")] = ()
    claims: Annotated[
        str, msgspec.Meta(description="Where templates of claims stand, each of which is a volume of the pods, too.")
    ] = ""
    added: Annotated[
        tuple[AddedContainer, ...], msgspec.Meta(description="Containers that the kind's controller adds to the pods.")
    ] = ()

    def counts(self) -> Iterator[Count]:
        """Yield the numbers whose product is how many pods there are."""
        yield from (Count(path=each) if isinstance(each, str) else each for each in self.count)


class PodKind(_TableSection, frozen=True):
    """A kind; one without ``pods`` makes none.

    ``suspended`` is the path of what holds its pods back while true, ``stopped`` of what does so by being there.
    ``owned`` are labels that identify its pods if their controller is another object. ``template_of`` is the path of
    what names another object, of one of Kubernetes' kinds, whose template it takes where it has none of its own.
    ``required`` are fields that its CustomResourceDefinition requires. A kind with a ``longest_name`` takes RFC 1035
    labels of so many characters as names.
    """

    api_version: Annotated[str, msgspec.Meta(description="The kind's apiVersion.")]
    kind: Annotated[str, msgspec.Meta(description="The kind.")]
    pods: Annotated[
        tuple[PodsOfKind, ...], msgspec.Meta(description="The pods that an object of it makes; none: it makes none.")
    ] = ()
    suspended: Annotated[str, msgspec.Meta(description="Where the object says that its pods are held back.")] = ""
    stopped: Annotated[str, msgspec.Meta(description="Where anything stands while its pods are held back.")] = ""
    scheduler: Annotated[
        Scheduler | None, msgspec.Meta(description="The scheduler of its pods, where the templates name none.")
    ] = None
    owned: Annotated[
        dict[str, str],
        msgspec.Meta(description="Labels by which its pods are known where their controller is another object."),
    ] = {}
    required: Annotated[
        tuple[Path, ...],
        msgspec.Meta(description="Fields that the kind requires, each where that is there which holds it."),
    ] = ()
    longest_name: Annotated[
        int,
        msgspec.Meta(ge=0, description="The most characters of its name, if it has to be an RFC 1035 label; 0: any."),
    ] = 0
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
        return _filled(pattern, owner, self.key.lower()[:_LONGEST_KEY], number)

    def labels(self, owner: str, number: int) -> dict[str, str]:
        """Return what its controller adds to the labels of pod ``number``."""
        return {label: _filled(text, owner, self.key, number) for label, text in self.rule.labels.items()}

    def job_name(self, owner: str, number: int) -> str:
        """Return the name of the Job ``number``, as its controller makes it of what is written; "" without Jobs."""
        return _filled(self.rule.job_name, owner, self.key, number)


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


@dataclass(frozen=True, slots=True)
class Reference:
    """The API group, kind and name of an object whose template another one takes."""

    group: str
    kind: str
    name: str


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
    if (group, named["kind"]) not in TEMPLATES_REFERRED:
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


def is_suspended(manifest: Manifest, kind: PodKind) -> bool:
    """Return whether an object holds its pods back."""
    return _is_true(manifest.body, kind.suspended) or any(places_at(manifest.body, kind.stopped))


def _is_true(body: Json, path: str) -> bool:
    return any(place.value is True for place in places_at(body, path))


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


def _sample(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels with short names in their braces."""
    return {key: _filled(text, "x", "x", 0) for key, text in labels.items()}


def _filled(pattern: str, owner: str, key: str, number: int) -> str:
    return pattern.replace("{name}", owner).replace("{key}", key).replace("{number}", str(number))
