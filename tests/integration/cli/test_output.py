"""What is printed where: colours for terminals, a full disk and a closed pipe as with other programs."""

import os
import pty
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.unit.cli.programs import arguments

NAMES = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM", "PYTHONIOENCODING")
CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes: [{name: 'n', mode: share, gpus: {count: 2, memory: 15GiB}}]
"""
BLOCK = "░"


@pytest.fixture
def question(tmp_path: Path) -> list[str]:
    """A command that draws a cluster, for an object that asks for no pod."""
    (tmp_path / "c.yaml").write_text(CLUSTER, encoding="utf-8")
    (tmp_path / "n.yaml").write_text("{apiVersion: v1, kind: Namespace, metadata: {name: team}}", encoding="utf-8")
    return ["simulate", "--cluster", str(tmp_path / "c.yaml"), "-f", str(tmp_path / "n.yaml")]


def printed(words: list[str], environment: dict[str, str], *, terminal: bool = False) -> str:
    """Return what the program prints to a pipe or to a terminal."""
    variables = {name: value for name, value in os.environ.items() if name not in NAMES} | environment
    if not terminal:
        return subprocess.run(arguments("main", *words), env=variables, capture_output=True, check=True).stdout.decode()
    ours, theirs = pty.openpty()
    with subprocess.Popen(arguments("main", *words), env=variables, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        found = b""
        while chunk := _read(ours):
            found += chunk
    os.close(ours)
    assert process.returncode == 0
    return found.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize(
    ("terminal", "environment", "there"),
    [
        (False, {}, False),
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_are_for_terminals(
    question: list[str], terminal: bool, environment: dict[str, str], there: bool
) -> None:
    text = printed(question, environment, terminal=terminal)
    assert BLOCK in text
    assert ("\x1b[" in text) == there


@pytest.mark.parametrize(("environment", "words"), [({"PYTHONIOENCODING": "latin-1"}, []), ({}, ["--ascii"])])
def test_blocks_are_for_those_that_have_them(
    question: list[str], environment: dict[str, str], words: list[str]
) -> None:
    assert printed([*question, *words], environment).isascii()


@pytest.mark.parametrize("words", [["--help"], [], ["-o", "json"]])
@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [
        (">/dev/full", 1, "error: cannot write to standard output: No space left on device\n"),
        ("2>/dev/full >/dev/full", 120, ""),  # Python's own, where it cannot write to standard error
        ("| true", 0, ""),
    ],
)
def test_output_that_cannot_be_written(
    question: list[str], words: list[str], streams: str, code: int, said: str
) -> None:
    """A reader that has seen enough is no error that anybody is told."""
    program = shlex.join(arguments("main", *(words if words == ["--help"] else [*question, *words])))
    done = subprocess.run(["bash", "-c", f"{program} {streams}"], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.removeprefix("note: there is nothing to place: no manifest asks for a pod\n") == said


def test_a_standard_input_that_is_closed(question: list[str]) -> None:
    program = shlex.join(arguments("main", *question[:-1], "-"))
    done = subprocess.run(["bash", "-c", f"{program} <&-"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: standard input: it is closed\n")
