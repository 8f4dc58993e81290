"""Parses label selectors as kubectl's ``-l`` takes them: ``a=b,c!=d,e in (f,g),h notin (i),j,!k``.

Source: k8s.io/apimachinery, pkg/labels/selector.go.
"""

import re
from collections.abc import Mapping
from typing import Final

from gputile.api.affinity import LabelSelector, LabelSelectorRequirement
from gputile.core.kube_predicates.node_fit import selects
from gputile.tools.simulator.names import broken_label_value, broken_qualified_name

_TOKEN: Final = re.compile(r"\s*(?:(?P<mark>==|!=|=|!|,|\(|\)|>|<)|(?P<word>[^\s=!,()<>]+))")
_OPERATORS: Final = {"=": "In", "==": "In", "in": "In", "!=": "NotIn", "notin": "NotIn", ">": "Gt", "<": "Lt"}
_GRAMMAR: Final = "write it as a=b,c!=d,e in (f,g),h notin (i),j,!k"


class SelectorError(ValueError):
    """A text is no label selector; the message names the place of the mistake."""


def parse_selector(text: str) -> LabelSelector:
    """Parse ``text`` into a selector; an empty text selects everything.

    Raises:
        SelectorError: it is none.
    """
    return _Parser(text).selector()


def matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Return whether the selector selects ``labels``."""
    return selects(selector, labels)


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            found = _TOKEN.match(text, position)
            assert found is not None, "every character is part of a token"  # noqa: S101 - as the pattern is
            self._tokens.append(found["mark"] or found["word"])
            position = found.end()
        self._tokens.reverse()

    def selector(self) -> LabelSelector:
        """Return all requirements."""
        found: list[LabelSelectorRequirement] = []
        while self._tokens:
            found.append(self._requirement())
            if self._tokens:
                self._expect(",")
                if not self._tokens:
                    raise self._error("a key is missing after the last comma")
        return LabelSelector(match_expressions=tuple(found))

    def _requirement(self) -> LabelSelectorRequirement:
        if self._next() == "!":
            self._tokens.pop()
            return LabelSelectorRequirement(self._key(), "DoesNotExist")
        key = self._key()
        sign = self._next()
        if sign in ("", ","):
            return LabelSelectorRequirement(key, "Exists")
        operator = _OPERATORS.get(sign)
        if operator is None:
            raise self._error(f"{sign!r} after {key} is no operator")
        self._tokens.pop()
        values = self._values() if sign in ("in", "notin") else (self._value(),)
        if operator in ("Gt", "Lt") and not re.fullmatch(r"-?[0-9]{1,18}", values[0]):
            raise self._error(f"{values[0]!r} after {sign} is no whole number")
        return LabelSelectorRequirement(key, operator, values)

    def _values(self) -> tuple[str, ...]:
        self._expect("(")
        values = [self._value()]
        while self._next() == ",":
            self._tokens.pop()
            values.append(self._value())
        self._expect(")")
        return tuple(values)

    def _key(self) -> str:
        key = self._next()
        if why := broken_qualified_name(key):
            raise self._error(why)
        return self._tokens.pop()

    def _value(self) -> str:
        """Return a value; none at all is the empty one."""
        value = "" if self._next() in ("", ",", ")") else self._tokens.pop()
        if why := broken_label_value(value):
            raise self._error(why)
        return value

    def _expect(self, mark: str) -> None:
        if self._next() != mark:
            raise self._error(
                f"{mark!r} is missing before {self._next()!r}" if self._next() else f"{mark!r} is missing"
            )
        self._tokens.pop()

    def _next(self) -> str:
        return self._tokens[-1] if self._tokens else ""

    def _error(self, why: str) -> SelectorError:
        return SelectorError(f"{self._text[:80]!r} is no label selector: {why}; {_GRAMMAR}")
