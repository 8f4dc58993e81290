"""Lists the values of the chart with their defaults and comments, from its values.yaml."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from docs.generator.tables import code, table

CHART = Path(__file__).resolve().parents[2] / "charts" / "gputile"


def render() -> str:
    """Return the table of all values."""
    return table(
        ("value", "default", "meaning"),
        ((code(name), default, text) for name, default, text in values()),
    )


def values() -> Iterator[tuple[str, str, str]]:
    """Yield the dotted name, the default and the comment of each value.

    Sections that have a comment are also yielded, without a default.
    """
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    root = yaml.compose(text, yaml.SafeLoader)
    yield from _values("", root, text.splitlines())


def _values(prefix: str, mapping: Any, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for key, value in mapping.value:
        name, comment = (
            f"{prefix}{key.value}",
            _comment(lines, key.start_mark.line, key.start_mark.column),
        )
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            if comment:
                yield name, "", comment
            yield from _values(f"{name}.", value, lines)
        else:
            yield name, _default(value), comment


def _comment(lines: list[str], line: int, column: int) -> str:
    """Return the comment directly above a line that has the same indentation as the line."""
    marker, found = f"{' ' * column}#", []
    while line > 0 and lines[line - 1].startswith(marker):
        line -= 1
        found.append(lines[line].removeprefix(marker).strip())
    return " ".join(reversed(found))


def _default(node: yaml.Node) -> str:
    """Return a default in the format of ``--set-json``, or "" if the default is empty."""
    loader = yaml.SafeLoader("")
    value = loader.construct_document(node)
    return (
        code(value if isinstance(value, str) else json.dumps(value))
        if value not in ("", [], {})
        else ""
    )
