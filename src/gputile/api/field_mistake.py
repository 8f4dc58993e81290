"""Names the field of a value that people wrote, and the rule that it breaks."""

from dataclasses import dataclass
from typing import Final

RULE: Final = "rule"
"""Key of ``msgspec.Meta.extra``: what a pattern demands, in words."""


@dataclass(frozen=True, slots=True)
class FieldMistake:
    """A field, "" for the value itself, and the rule that it breaks."""

    path: str
    rule: str

    def __str__(self) -> str:
        return f"{self.path}: {self.rule}" if self.path else self.rule
