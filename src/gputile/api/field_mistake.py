"""Names the field of a value that people wrote, and the rule that it breaks."""

from dataclasses import dataclass
from typing import Any, Final

from msgspec import Meta

RULE: Final = "rule"
"""Key of ``msgspec.Meta.extra``: what a pattern demands, in words."""


def described(text: str, **rules: Any) -> Meta:
    """Return what a field is, for the schema of its record, and by ``rules`` which values it takes."""
    return Meta(description=text, **rules)


def matching(pattern: str, rule: str, description: str | None = None) -> Meta:
    """Return that a string is ``pattern`` from beginning to end, and ``rule``, what it demands in words."""
    # Not "$", as in JSON Schema: in Python it stands before a line's end, too.
    return Meta(pattern=rf"^{pattern}\Z", extra={RULE: rule}, description=description)


@dataclass(frozen=True, slots=True)
class FieldMistake:
    """A field, "" for the value itself, and the rule that it breaks."""

    path: str
    rule: str

    def __str__(self) -> str:
        return f"{self.path}: {self.rule}" if self.path else self.rule
