"""The page by symptom has a row for each complaint of gputile, and names commands that exist."""

import re
from typing import Any

import typer.main
from docs.generator.pages import DOCS

from gputile.cli.app import app

_PAGE = (DOCS / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| `(?P<name>[\w./]+)` \|(?P<rest>.*)\|$", re.MULTILINE)


def _rows(page: str) -> dict[str, str]:
    return {match["name"]: match["rest"] for match in _ROW.finditer((DOCS / "reference" / page).read_text("utf-8"))}


def test_each_warning_of_a_pod_has_a_row() -> None:
    warnings = [name for name, rest in _rows("events.md").items() if "Warning" in rest]
    assert warnings
    assert [name for name in warnings if f"`{name}`" not in _PAGE] == []


def test_each_condition_of_a_node_has_a_row() -> None:
    conditions = [name for name in _rows("conditions.md") if name.startswith("gputile.io/")]
    assert conditions
    assert [name for name in conditions if f"`{name}`" not in _PAGE] == []


def test_each_command_exists_with_its_options() -> None:
    named = re.findall(r"(?:`|^)gputile ([^`\n#]+)", _PAGE, re.MULTILINE)
    assert named
    assert [line for line in named if not _exists(line.split())] == []


def _exists(words: list[str]) -> bool:
    """Tell whether there is a command of that name, with each of the options."""
    command: Any = typer.main.get_command(app)
    while getattr(command, "commands", None):
        name, *words = words
        if name not in command.commands:
            return False
        command = command.commands[name]
    known = {option for each in command.params for option in each.opts}
    return all(word in known for word in words if word.startswith("-"))
