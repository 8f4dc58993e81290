"""Lists the resources, labels and annotations of ``gputile.api.well_known`` and their comments."""

import re
from typing import NamedTuple

from docs.generator.source import SOURCE
from docs.generator.tables import code, table

SECTIONS = (
    "resources",
    "labels",
    "gang-labels",
    "own-annotations",
    "gpushare-annotations",
    "other-annotations",
)
_HEADINGS = (
    "# Resources",
    "# Labels",
    "# Gangs",
    "# Annotations: gputile's own",
    "# Annotations that existing tools read",
    "# Annotations with a meaning to others",
)
_LINE = re.compile(r'# (?P<whose>[^;\n]+); (?P<meaning>[^\n]+)\n[A-Z_]+: Final = "(?P<name>[^"]+)"')
_NAME = re.compile(r'^[A-Z_]+: Final = "([^"]+)"', re.M)


class NameEntry(NamedTuple):
    """A name that gputile reads or writes, the project that defines the name, and its meaning."""

    name: str
    whose: str
    meaning: str


def render(section: str) -> str:
    """Return the table of a section."""
    rows = [(code(each.name), each.whose, each.meaning) for each in entries(section)]
    return table(("name", "defined by", "meaning"), rows)


def entries(section: str) -> list[NameEntry]:
    """Return the names of a section, in the order of the code."""
    text = (SOURCE / "api" / "well_known.py").read_text(encoding="utf-8")
    start = text.index(_HEADINGS[SECTIONS.index(section)])
    block = text[start : text.index("\n\n", start)]
    return [
        NameEntry(match["name"], match["whose"], match["meaning"])
        for match in _LINE.finditer(block)
    ]


def unread() -> list[str]:
    """Return the names that have no comment with the defining project and the meaning."""
    text = (SOURCE / "api" / "well_known.py").read_text(encoding="utf-8")
    return [
        name
        for section, heading in zip(SECTIONS, _HEADINGS, strict=True)
        for name in _NAME.findall(text[text.index(heading) :].split("\n\n", 1)[0])
        if name not in {entry.name for entry in entries(section)}
    ]
