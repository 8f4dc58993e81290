"""What a terminal can show: asked of the environment and of the output, as other programs ask it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gputile.cli.output.streams import coloured, note
from gputile.cli.output.terminal import ascii_only, columns
from tests.unit.cli.programs import arguments

NAMES = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONIOENCODING", "PYTHONUTF8")
CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes: [{name: 'n', mode: share, gpus: {count: 2, memory: 15GiB}}]
"""
BLOCK = "░"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def simulated(tmp_path: Path, environment: dict[str, str], *words: str, terminal: bool = False) -> str:
    """Return what the program prints to a pipe or to a terminal."""
    command = _question(tmp_path, *words)
    variables = {name: value for name, value in os.environ.items() if name not in NAMES} | environment
    if not terminal:
        return subprocess.run(command, env=variables, capture_output=True, check=True).stdout.decode()
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=variables, stdout=theirs) as process:
        os.close(theirs)
        found = b""
        while chunk := _read(ours):
            found += chunk
    os.close(ours)
    assert process.returncode == 0
    return found.decode()


def _question(tmp_path: Path, *words: str) -> list[str]:
    """Return a command that draws a cluster, for an object that asks for no pod."""
    (tmp_path / "c.yaml").write_text(CLUSTER, encoding="utf-8")
    (tmp_path / "n.yaml").write_text("{apiVersion: v1, kind: Namespace, metadata: {name: team}}", encoding="utf-8")
    return arguments("main", "simulate", "--cluster", str(tmp_path / "c.yaml"), "-f", str(tmp_path / "n.yaml"), *words)


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
        (True, {"TERM": "xterm", "FORCE_COLOR": ""}, False),
    ],
)
def test_colours_are_for_terminals(tmp_path: Path, terminal: bool, environment: dict[str, str], there: bool) -> None:
    assert ("\x1b[" in simulated(tmp_path, environment, terminal=terminal)) == there


@pytest.mark.parametrize("encoding", ["idna", "utf-16", "latin-1", "utf-7"])
def test_what_is_printed_is_written(tmp_path: Path, encoding: str) -> None:
    """Some encodings wait for the end of a name, which a text has not."""
    command = _question(tmp_path, "-o", "json")
    done = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True, check=True)
    written = "utf-8" if encoding == "idna" else encoding
    assert '"nodes": [' in done.stdout.decode(written)
    assert "there is nothing to place" in done.stderr.decode(written)


@pytest.mark.parametrize(("environment", "there"), [({"TERM": "xterm"}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_of_errors_are_for_terminals_too(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], environment: dict[str, str], there: bool
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    note("x")
    assert ("\x1b[" in capfd.readouterr().err) == there


@pytest.mark.parametrize(
    "environment",
    [
        {"TERM": "xterm"},
        {"TERM": "xterm", "NO_COLOR": "1"},
        {"TERM": "xterm", "NO_COLOR": ""},
        {"TERM": "dumb"},
        {"FORCE_COLOR": "1", "TERM": "xterm"},
        {"FORCE_COLOR": "0", "TERM": "xterm"},
        {"FORCE_COLOR": "", "TERM": "xterm"},
        {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"},
    ],
)
def test_colours_are_decided_as_rich_decides(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    from rich.console import Console

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    rich = Console()
    assert coloured(sys.stdout) == (rich.color_system is not None and not rich.no_color)


@pytest.mark.parametrize(
    ("environment", "words", "blocks"),
    [
        ({"LANG": "en_US.UTF-8"}, [], True),
        ({}, [], True),
        ({"LANG": "C"}, [], False),
        ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, [], False),
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, [], True),
        ({"PYTHONIOENCODING": "latin-1"}, [], False),
        ({"LANG": "en_US.UTF-8"}, ["--ascii"], False),
    ],
)
def test_blocks_are_for_those_that_have_them(
    tmp_path: Path, environment: dict[str, str], words: list[str], blocks: bool
) -> None:
    text = simulated(tmp_path, environment, *words)
    assert (BLOCK in text) == blocks
    assert blocks or text.isascii()


def test_columns_are_those_that_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert columns() is None
    monkeypatch.setenv("COLUMNS", "66")
    assert columns() == 66
    for wrong in ("0", "-3", "wide", ""):
        monkeypatch.setenv("COLUMNS", wrong)
        assert columns() is None


def test_a_closed_output_has_no_columns_and_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert (columns(), coloured(sys.stdout), ascii_only()) == (None, False, True)
