"""Finds unknown fields, values of the wrong type, impossible amounts and misspelt resources.

Required fields are not checked here, because the API server checks them.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from gputile.api.core import Container, Node, Pod
from gputile.api.kubernetes import INT_OR_STRING, QUANTITY, TIMES, kubernetes_kinds
from gputile.api.quantity import QuantityError, parse_quantity
from gputile.api.well_known import (
    GPU_CORE,
    GPU_COUNT,
    GPU_MEMORY,
    GPU_RESOURCES,
    MIG_PREFIX,
    MODE_LABEL,
    Mode,
)
from gputile.api.wording import kind_of, nearest, shown

Broken = tuple[str, str]  # a field's path, and the rule that it breaks
Json = Mapping[str, Any]  # a mapping in a manifest

POD_TEMPLATE: Final = "core.v1.PodTemplateSpec"
_MOST_FOUND = 20
_LONGEST = 60  # the largest number of characters of a value that a message shows
_INTEGERS = {"int32": 2**31, "int64": 2**63}


class UnknownFields(StrEnum):
    """The treatment of an object's unknown fields."""

    REFUSED = "refused"
    NOTED = "noted"
    IGNORED = "ignored"


def broken_fields(type_name: str, value: Any, path: str = "") -> list[Broken]:
    """Return the mistakes in a value of a type. ``path`` is the value's path in its object.

    Unknown fields come first. Wrong types and invalid values follow. Each of these two groups has
    at most ``_MOST_FOUND`` entries, because callers may ignore the first group.
    """
    unknown: list[Broken] = []
    others: list[Broken] = []
    for where, rule in _check(type_name, value, path):
        if not isinstance(rule, _Unknown):
            others.append((where, rule))
        elif len(unknown) < _MOST_FOUND:
            unknown.append((where, _unknown_field(*rule)))
        if len(others) == _MOST_FOUND:
            break
    return [*unknown, *others]


class _Unknown(NamedTuple):
    """A mistake: the type has no field of this name."""

    name: str
    type_name: str


# Cached, because finding a similar name is slow, and the objects of a file repeat mistakes.
@functools.lru_cache(10_000)
def _unknown_field(name: str, type_name: str) -> str:
    return f"unknown field{nearest(name, _fields(type_name))}"


_Finding = tuple[str, "str | _Unknown"]


@functools.cache
def _fields(type_name: str) -> dict[str, str]:
    """Return the type of each field of a type, without the "!" that marks required fields."""
    return {name: text.rstrip("!") for name, text in kubernetes_kinds().types[type_name].items()}


def names_of_fields(type_name: str) -> frozenset[str]:
    return frozenset(_fields(type_name))


def _check(type_name: str, value: Any, path: str) -> Iterator[_Finding]:
    if type_name.startswith("[]"):
        yield from _list(type_name[2:], value, path)
    elif type_name.startswith("{}"):
        yield from _map(type_name[2:], value, path)
    elif type_name in kubernetes_kinds().types:
        yield from _object(type_name, value, path)
    elif type_name != "any":
        enumerated = type_name.startswith("string(")
        why = (
            _one_of(type_name[7:-1].split("|"), value) if enumerated else _scalar(type_name, value)
        )
        if why:
            yield path, why


def _object(type_name: str, value: Any, path: str) -> Iterator[_Finding]:
    if not isinstance(value, dict):
        yield path, f"must be a mapping, is {kind_of(value)}"
        return
    types = _fields(type_name)
    before = f"{path}." if path else ""
    for name, item in value.items():
        expected = types.get(name)
        if expected is None:
            yield f"{before}{shown(name)[1:-1]}", _Unknown(name, type_name)
        elif item is not None:
            yield from _check(expected, item, f"{before}{name}")


def _list(item_type: str, value: Any, path: str) -> Iterator[_Finding]:
    if not isinstance(value, list):
        yield path, f"must be a list, is {kind_of(value)}"
        return
    for i, item in enumerate(value):
        yield from _check(item_type, item, f"{path}[{i}]")


def _map(item_type: str, value: Any, path: str) -> Iterator[_Finding]:
    if not isinstance(value, dict):
        yield path, f"must be a mapping, is {kind_of(value)}"
        return
    for key, item in value.items():
        if key == GPU_MEMORY and isinstance(item, str) and item.endswith("iB"):
            yield (
                f"{path}[{shown(key)}]",
                f"{shown(item)} is a size: write the number of memory units, such as 2",
            )
        elif item is not None:
            yield from _check(item_type, item, f"{path}[{shown(key)}]")


def _scalar(type_name: str, value: Any) -> str | None:
    """Return why a value is invalid for a scalar type, or None if it is valid."""
    if type_name in _SCALARS:
        types, what = _SCALARS[type_name]
        if isinstance(value, types) and (bool in types or not isinstance(value, bool)):
            return None
        hint = (
            ": write it in quotes"
            if what == "a string" and isinstance(value, bool | int | float)
            else ""
        )
        return f"must be {what}, is {kind_of(value)}{hint}"
    if type_name == QUANTITY:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return f"must be a quantity, is {kind_of(value)}"
        try:
            parse_quantity(value)
        except QuantityError as error:
            return str(error)
        return None
    if type_name == INT_OR_STRING:
        return None if isinstance(value, str) else _scalar("int32", value)
    bound = _INTEGERS[type_name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a whole number, is {kind_of(value)}"
    if not -bound <= value < bound:
        return f"{str(value)[:_LONGEST]} is outside of the range of {type_name}"
    return None if value == int(value) else f"must be a whole number, is {value}"


def _one_of(valid: Sequence[str], value: Any) -> str | None:
    if not isinstance(value, str):
        return _scalar("string", value)
    if value and value not in valid:
        return (
            f"Unsupported value: {shown(value)}: supported values: {', '.join(map(shown, valid))}"
        )
    return None


_SCALARS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "bool": ((bool,), "true or false"),
    "number": ((int, float), "a number"),
    **dict.fromkeys(("string", *TIMES), ((str,), "a string")),
}


_KINDS: Final = ("initContainers", "containers")
_SIMILARITY: Final = 0.75  # required similarity, higher than between amd.com/gpu and nvidia.com/gpu
# HAMi's names for gputile's resources. HAMi counts memory in MiB.
_HAMI_NAMES: Final = MappingProxyType(
    {"nvidia.com/gpumem": GPU_MEMORY, "nvidia.com/gpucores": GPU_CORE}
)


class MistypedResources:
    """Finds misspelt extended resources, and reports each name once.

    A name is correct if a node advertises that resource, or a gputile agent can advertise it.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        names = {*GPU_RESOURCES, *(name for node in nodes for name in node.status.allocatable)}
        self._offered = frozenset(name for name in names if "/" in name and name != GPU_COUNT)
        self._seen: set[str] = set()

    def in_spec(self, prefix: str, spec: Json) -> Iterator[str]:
        """Yield a sentence for each misspelt resource in the limits of a valid pod spec.

        ``prefix`` is the beginning of the fields' paths. HAMi's resources are excluded, because
        ``foreign_notes`` reports them, and states which amounts to write instead.
        """
        for kind in _KINDS:
            for i, container in enumerate(spec.get(kind, ())):
                named = container.get("resources", {}).get("limits", {})
                for sentence in self.among(name for name in named if name not in _HAMI_NAMES):
                    yield f"{prefix}spec.{kind}[{i}].resources.limits: {sentence}"

    def among(self, names: Iterable[str]) -> Iterator[str]:
        """Yield a sentence for each incorrect name that resembles a correct name."""
        for name in names:
            if "/" not in name or name.startswith(MIG_PREFIX) or name in self._offered | self._seen:
                continue
            self._seen.add(name)
            if suggestion := self._suggestion(name):
                yield f"no node offers {shown(name)}{suggestion}"

    def _suggestion(self, name: str) -> str:
        longer = min((each for each in self._offered if each.startswith(f"{name}.")), default="")
        named = longer or _HAMI_NAMES.get(name)
        return f"; did you mean {named}?" if named else nearest(name, self._offered, _SIMILARITY)


def mistyped_mode(pod: Pod) -> str:
    """Return a sentence if the pod selects nodes by a misspelt mode, or "" otherwise."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else ()
    rules = [rule for term in terms for rule in term.match_expressions if rule.operator == "In"]
    required = [
        *pod.spec.node_selector.items(),
        *((rule.key, value) for rule in rules for value in rule.values),
    ]
    for key, mode in required:
        if key == MODE_LABEL and mode not in set(Mode) and (suggestion := nearest(mode, Mode)):
            return f"no node is in mode {shown(mode)} ({MODE_LABEL}){suggestion}"
    return ""


def broken_amounts(path: str, spec: Json) -> Iterator[Broken]:
    """Yield resource amounts that every API server refuses. The pod spec is at ``path``."""
    for kind in _KINDS:
        for i, container in enumerate(spec.get(kind, ())):
            for bound in ("limits", "requests"):
                amounts = container.get("resources", {}).get(bound, {})
                yield from _amounts(f"{path}.{kind}[{i}].resources.{bound}", amounts)


def _amounts(path: str, amounts: Mapping[str, str | int | float]) -> Iterator[Broken]:
    for name, written in amounts.items():
        value = parse_quantity(written)
        if value < 0:
            rule = "must be greater than or equal to 0"
        elif "/" in name and "kubernetes.io/" not in name and value.denominator != 1:
            rule = "must be an integer"
        else:
            continue
        yield f"{path}[{shown(name)}]", f"Invalid value: {shown(str(written))}: {rule}"


def with_containers(pod: Pod, change: Callable[[Container], Container]) -> Pod:
    """Replace each container of ``pod`` by the result of ``change``.

    ``change`` is called for init containers after the other containers.
    """
    containers = tuple(map(change, pod.spec.containers))
    initial = tuple(map(change, pod.spec.init_containers))
    spec = msgspec.structs.replace(pod.spec, containers=containers, init_containers=initial)
    return msgspec.structs.replace(pod, spec=spec)
