"""Executes the commands of a page, and compares what they print with what the page shows.

A fenced block of ``console`` holds commands after "$ ", each with its output below; a command whose line opens a
here-document goes on to its end. "..." in an output stands for anything, within a line or as a whole line for several.
A command that only looks is repeated until it shows what the page shows: a cluster takes a moment.
"""

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.localcluster.processes import PATIENCE_S

_FENCE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HERE = re.compile(r"<<'?(\w+)'?")
_LOOKING = re.compile(r"^(kubectl (get|inspect|describe) |gputile (status|inspect|explain) )")


@dataclass(frozen=True)
class Step:
    """One command and what it prints."""

    command: str
    output: str


def steps_of(page: Path) -> list[Step]:
    """Return the commands of a page, in order."""
    found = [step for block in _FENCE.findall(page.read_text(encoding="utf-8")) for step in _steps(block)]
    assert found, f"{page} has no commands"
    return found


def _steps(block: str) -> Iterator[Step]:
    lines = block.splitlines()
    assert lines[0].startswith("$ "), f"a console block begins with a command, not with {lines[0]!r}"
    while lines:
        command = [lines.pop(0).removeprefix("$ ")]
        here = _HERE.search(command[0])
        while here and command[-1] != here[1]:
            command.append(lines.pop(0))
        output = []
        while lines and not lines[0].startswith("$ "):
            output.append(lines.pop(0))
        yield Step("\n".join(command), "\n".join(output))


def walk(page: Path, environment: Mapping[str, str], directory: Path, done: Callable[[str], object]) -> None:
    """Execute a page's commands in ``directory``; ``done`` is told of each that has run.

    Raises:
        AssertionError: one prints something else than the page shows; with both.
    """
    for step in steps_of(page):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ran = subprocess.run(
                ["bash", "-c", step.command],
                env=dict(environment),
                cwd=directory,
                capture_output=True,
                text=True,
                check=False,
            )
            printed = ran.stdout.rstrip("\n")
            if matches(step.output, printed):
                break
            looks = _LOOKING.match(step.command) is not None
            if not looks or time.monotonic() > deadline:
                told = f"the page shows:\n{step.output}\nit printed:\n{printed}\n{ran.stderr}"
                raise AssertionError(f"{page.name}: $ {step.command}\n{told}")
            time.sleep(0.5)
        done(step.command)


def matches(shown: str, printed: str) -> bool:
    """Return whether an output is as the page shows it; trailing blanks do not count."""
    lines = [line.rstrip() for line in shown.splitlines()]
    parts = [r"[\s\S]*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"[ ]*" for line in lines]
    return re.fullmatch(r"\n?".join(parts) if "..." in lines else "\n".join(parts), printed) is not None
