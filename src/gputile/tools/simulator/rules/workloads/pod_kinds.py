"""Defines the table of custom kinds that make pods: paths of their templates and replica counts.

The table is ``pod_kinds.yaml``; people add to it by a file of the same form.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from gputile.api.wording import described
from gputile.tools.simulator.documents.paths import places_at
from gputile.tools.simulator.rules.values.fields import Json

Path = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class _TableSection(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A part of a file that people write: an unknown field is an error, since it may be a typing mistake."""


class Count(_TableSection, frozen=True):
    """A number in the object: what stands at ``path``, ``default`` where nothing does, and ``plus`` added.

    It is no less than what stands at ``least``, and no more than what stands at ``most``, where these are there. A
    number below ``minimum`` is refused.
    """

    path: Annotated[Path, described("Where the number stands in the object.")]
    default: Annotated[int, described("The number where nothing stands there.", ge=0)] = 1
    plus: Annotated[int, described("What is added to it.")] = 0
    least: Annotated[str, described("Where a number stands that it is no less than.")] = ""
    most: Annotated[str, described("Where a number stands that it is no more than.")] = ""
    minimum: Annotated[int, described("The smallest number that the kind takes there.", ge=0)] = 0

    def paths(self) -> Iterator[str]:
        """Yield where its numbers stand."""
        yield from filter(None, (self.path, self.least, self.most))


class Condition(_TableSection, frozen=True, kw_only=True):
    """What holds if ``value`` stands at ``path``; where nothing stands there, ``default`` counts."""

    path: Annotated[Path, described("Where the value stands in the object.")]
    value: Annotated[bool | str, described("What has to stand there.")] = True
    default: Annotated[bool | str, described("What counts where nothing stands there.")] = False

    def holds(self, body: Json) -> bool:
        """Return whether it holds for an object."""
        found = next((place.value for place in places_at(body, self.path)), self.default)
        return type(found) is type(self.value) and bool(found == self.value)


class AddedContainer(_TableSection, frozen=True, kw_only=True):
    """A container that the kind's controller adds to each pod, with the image of the pod's first one."""

    when: Annotated[Condition, described("When there is one.")]
    name: Annotated[str, described("The container's name.")]
    requests: Annotated[dict[str, str], described("What it requests.")] = {}
    limits: Annotated[dict[str, str], described("What it is limited to.")] = {}
    resources: Annotated[str, described("Where resources of it stand that count instead.")] = ""


class Scheduler(_TableSection, frozen=True, kw_only=True):
    """The scheduler of pods whose template names none: what stands at ``path``, else ``default``."""

    default: Annotated[str, described("Its schedulerName.")]
    path: Annotated[str, described("Where another schedulerName stands.")] = ""


class MadeBy(_TableSection, frozen=True, kw_only=True):
    """An object of Kubernetes' own into which the controller of a kind puts a template, and which makes the pods."""

    kind: Annotated[Literal["Job", "ReplicaSet", "StatefulSet"], described("Its kind, whose rules the template has.")]
    name: Annotated[str, described("What it is called, before a hash; {name} is the object's, {number} counts.")] = ""


class PodsOfKind(_TableSection, frozen=True):
    """Pods that a kind makes: a template, and numbers whose product is how many there are of it.

    In a path "*" stands for each entry of a list or mapping; a number's "*" is the same entry as the template's.
    ``otherwise`` is where the template stands if it is not at ``template``. In ``name`` and ``labels``, ``{name}``
    is the object's name, ``{key}`` the entry's, and ``{number}`` counts the pods of the template. Pods with a
    ``job_name`` are made by Jobs of this name, as many as the first number of ``count``: ``template`` is in the
    template of a Job. Where anything stands at ``unless``, the object uses pods of another one, and needs no such
    template; nor does it where ``when`` does not hold. ``default`` is the template where it has none. ``suspended``
    is where an entry says by true that it has no pods. ``made_by`` is the object that makes the pods, if it is one
    of Kubernetes' own: the first number of ``count`` is how many of them there are. Of the entries with a key that
    is in ``services`` ("*" for all), a Service is called as each pod, and those in ``single`` have one pod.
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
    container: Annotated[str, described("The name of the container that the kind's controller looks for.")] = ""
    keys: Annotated[
        tuple[str, ...], described("Keys that the mapping may have which the last * stands for; none: any.")
    ] = ()
    job_name: Annotated[
        str, described("Names of the Jobs that make the pods, with the same braces; {number} counts Jobs.")
    ] = ""

    unless: Annotated[str, described("Where the object names another one whose pods it uses instead of these.")] = ""
    when: Annotated[Condition | None, described("When it makes these pods; absent: always.")] = None
    default: Annotated[dict[str, Any] | None, described("The template where the object has none.")] = None
    suspended: Annotated[str, described("Where an entry says that it has no pods.")] = ""
    services: Annotated[
        tuple[str, ...], described("Keys of entries for each of whose pods there is a Service of its name; *: all.")
    ] = ()
    single: Annotated[tuple[str, ...], described("Keys of entries that have one pod.")] = ()
    made_by: Annotated[
        MadeBy | None, described("What object of Kubernetes' own the controller puts the template into.")
    ] = None
    claims: Annotated[
        str, described("Where templates of claims stand, each of which is a volume of the pods, too.")
    ] = ""
    added: Annotated[
        tuple[AddedContainer, ...], described("Containers that the kind's controller adds to the pods.")
    ] = ()

    def counts(self) -> Iterator[Count]:
        """Yield the numbers whose product is how many pods there are."""
        yield from (Count(path=each) if isinstance(each, str) else each for each in self.count)


class PodKind(_TableSection, frozen=True):
    """A kind; one without ``pods`` makes none.

    ``suspended`` is the path of what holds its pods back while true, ``stopped`` of what does so by being there.
    ``owned`` are labels that identify its pods if their controller is another object. ``template_of`` is the path
    of what names another object, of one of Kubernetes' kinds, whose template it takes where it has none of its own.
    ``any_of`` are fields one of which it needs. ``required`` are fields that its CustomResourceDefinition requires.
    A kind with a ``longest_name`` takes RFC 1035 labels of so many characters as names.
    """

    api_version: Annotated[str, described("The kind's apiVersion.")]
    kind: Annotated[str, described("The kind.")]
    pods: Annotated[tuple[PodsOfKind, ...], described("The pods that an object of it makes; none: it makes none.")] = ()
    suspended: Annotated[str, described("Where the object says that its pods are held back.")] = ""
    stopped: Annotated[str, described("Where anything stands while its pods are held back.")] = ""
    scheduler: Annotated[Scheduler | None, described("The scheduler of its pods, where the templates name none.")] = (
        None
    )
    owned: Annotated[
        dict[str, str], described("Labels by which its pods are known where their controller is another object.")
    ] = {}
    any_of: Annotated[tuple[Path, ...], described("Fields one of which has to be there, and not empty.")] = ()
    required: Annotated[
        tuple[Path, ...], described("Fields that the kind requires, each where that is there which holds it.")
    ] = ()
    longest_name: Annotated[
        int, described("The most characters of its name, if it has to be an RFC 1035 label; 0: any.", ge=0)
    ] = 0
    template_of: Annotated[
        str, described("Where the object names one of Kubernetes' kinds whose template its pods have.")
    ] = ""


class KindsTable(_TableSection, frozen=True):
    """The whole table."""

    api_version: Annotated[Literal["gputile.io/v1alpha1"], described("The version of this file.")]
    kind: Annotated[Literal["PodKinds"], described("What this file is.")]
    kinds: Annotated[tuple[PodKind, ...], described("The kinds.")]


def filled(pattern: str, owner: str, key: str, number: int) -> str:
    """Return a name or label of the table with ``{name}``, ``{key}`` and ``{number}`` replaced."""
    return pattern.replace("{name}", owner).replace("{key}", key).replace("{number}", str(number))
