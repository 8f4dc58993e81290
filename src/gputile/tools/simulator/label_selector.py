"""Parses label selectors as kubectl's ``-l`` takes them: ``a=b,c!=d,e in (f,g),h notin (i),j,!k``.

Source: k8s.io/apimachinery, pkg/labels/selector.go.
"""

import re
from collections.abc import Iterable
from typing import Final

from gputile.api.affinity import LabelSelector, LabelSelectorRequirement
from gputile.api.core import Node
from gputile.api.wording import broken_label_value, broken_qualified_name, nearest

_WORD: Final = r"[^\s=!,()<>]"
_REQUIREMENT: Final = re.compile(
    rf"(?P<absent>!\s*)?(?P<key>{_WORD}+)"
    rf"(?:\s*(?P<sign>==|!=|=|>|<)\s*(?P<value>{_WORD}*)|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?"
)
_BETWEEN: Final = re.compile(r",(?![^(]*\))")  # a comma outside of brackets
_OPERATORS: Final = {"=": "In", "==": "In", "in": "In", "!=": "NotIn", "notin": "NotIn", ">": "Gt", "<": "Lt"}
_GRAMMAR: Final = "write it as a=b,c!=d,e in (f,g),h notin (i),j,!k"


class SelectorError(ValueError):
    """A text is no label selector; the message names the requirement that is wrong."""


def parse_selector(text: str) -> LabelSelector:
    """Parse ``text`` into a selector; an empty text selects everything.

    Raises:
        SelectorError: it is none.
    """
    parts = _BETWEEN.split(text) if text.strip() else []
    return LabelSelector(match_expressions=tuple(_requirement(text, part.strip()) for part in parts))


def nearly_selected(text: str, nodes: Iterable[Node]) -> str:
    """Return which label or value of the nodes a valid selector that selects none may mean, "" where none is near."""
    labels = [node.metadata.labels for node in nodes]
    for requirement in parse_selector(text).match_expressions:
        key, values = requirement.key, {each[requirement.key] for each in labels if requirement.key in each}
        if not values:
            return nearest(key, {each for known in labels for each in known})
        if requirement.operator == "In" and values.isdisjoint(requirement.values):
            return nearest(requirement.values[0], values)
    return ""


def _requirement(text: str, part: str) -> LabelSelectorRequirement:
    found = _REQUIREMENT.fullmatch(part)
    sign = (found["sign"] or found["set"] or "") if found is not None else ""
    if found is None or (found["absent"] and sign):
        raise _error(text, f"{part[:80]!r} is no requirement")
    key, operator = found["key"], _OPERATORS.get(sign)
    values = tuple(each.strip() for each in (found["value"] or found["values"] or "").split(",")) if operator else ()
    for why in filter(None, (broken_qualified_name(key), *map(broken_label_value, values))):
        raise _error(text, why)
    if operator in ("Gt", "Lt") and not re.fullmatch(r"-?[0-9]{1,18}", values[0]):
        raise _error(text, f"{values[0]!r} after {sign} is no whole number")
    return LabelSelectorRequirement(key, operator or ("DoesNotExist" if found["absent"] else "Exists"), values)


def _error(text: str, why: str) -> SelectorError:
    return SelectorError(f"{text[:80]!r} is no label selector: {why}; {_GRAMMAR}")
