"""Completion of values as shells ask for it: each in its protocol, and bash for real."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import HANGS_S
from tests.unit.cli.programs import arguments


def asked(shell: str, line: str) -> dict[str, str]:
    """Return the variables that a shell sets to ask for the last word of a line."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    return {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell] | {"_GPUTILE_COMPLETE": f"complete_{shell}"}


def completed(line: str, shell: str = "bash") -> list[str]:
    """Return what the last word of a line may become, as ``gputile`` tells a shell."""
    environment = os.environ | asked(shell, line)
    done = subprocess.run(
        arguments("main"), env=environment, capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert done.stderr == ""
    return [each.partition("\t")[0] for each in done.stdout.splitlines() if each]  # fish is told helps, too


@pytest.mark.parametrize("shell", ["bash", "fish"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gputile replay --policy b", ["bestfit", "binpack"]),
        ("gputile replay --policy fgd --policy s", ["spread"]),
        ("gputile explain p -o j", ["json"]),
        ("gputile status --output t", ["table"]),
        ("gputile status --inst", ["--installed-in"]),
        ("gputile status --name", []),
    ],
)
def test_values(shell: str, line: str, words: list[str]) -> None:
    assert completed(line, shell) == words


def test_values_in_zsh() -> None:
    said = completed("gputile replay --policy b", "zsh")
    assert said == ["""_arguments '*: :(("bestfit\"""", """"binpack"))'"""]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
def test_bash_itself(tmp_path: Path) -> None:
    """The script that bash is given completes in it."""
    program = tmp_path / "gputile"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(arguments("main"))} "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = """
        source <(_GPUTILE_COMPLETE=source_bash gputile)
        COMP_WORDS=(gputile replay --policy "b") COMP_CWORD=3
        $(complete -p gputile | sed 's/.*-F \\([^ ]*\\) .*/\\1/') gputile
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["bestfit", "binpack"], "")
