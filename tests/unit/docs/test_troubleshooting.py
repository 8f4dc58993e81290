"""The page by symptom has a row for each complaint of gputile, and names commands that exist."""

import re

from docs.generator.pages import DOCS

from tests.unit.docs.named_commands import unknown_to_gputile

_PAGE = (DOCS / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| `(?P<name>[\w./]+)` \|(?P<rest>.*)\|$", re.MULTILINE)


def _rows(page: str) -> dict[str, str]:
    return {match["name"]: match["rest"] for match in _ROW.finditer((DOCS / "reference" / page).read_text("utf-8"))}


def test_each_warning_of_a_pod_has_a_row() -> None:
    warnings = [name for name, rest in _rows("events.md").items() if "Warning" in rest]
    assert warnings
    assert [name for name in warnings if f"`{name}`" not in _PAGE] == []


def test_each_condition_of_a_node_has_a_row() -> None:
    conditions = [name for name in _rows("events.md") if name.startswith("gputile.io/")]
    assert conditions
    assert [name for name in conditions if f"`{name}`" not in _PAGE] == []


def test_each_command_exists_with_its_options() -> None:
    assert unknown_to_gputile(_PAGE) == []
