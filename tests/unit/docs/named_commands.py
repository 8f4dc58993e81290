"""The commands that a page names: those in blocks of ``sh``, and gputile's wherever they stand."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from gputile.cli.app import app

_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_GPUTILE = re.compile(r"(?:`|^)(?:\$ )?gputile ([^`\n#|]+)", re.MULTILINE)


def shell_commands(page: str) -> Iterator[str]:
    """Yield the commands in a page's blocks of ``sh``, continued lines joined, without comments."""
    for block in _SHELL.findall(page):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s#.*", "", line).strip()
            if command:
                yield command


def unknown_to_gputile(page: str) -> list[str]:
    """Return the commands of gputile that a page names and that do not exist, or not with these options.

    Raises:
        AssertionError: the page names no command of gputile.
    """
    named = _GPUTILE.findall(page)
    assert named
    return [line for line in named if not _exists(line.split())]


def _exists(words: list[str]) -> bool:
    command: Any = typer.main.get_command(app)
    while getattr(command, "commands", None):
        name, *words = words
        if name not in command.commands:
            return False
        command = command.commands[name]
    known = {option for each in command.params for option in each.opts}
    return all(word in known for word in words if word.startswith("-"))
