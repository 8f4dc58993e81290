"""Completion of values as shells ask for it: each in its protocol, bash for real, nothing said when nothing answers."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.cli.programs import arguments
from tests.unit.cli.reads.test_live_cluster import machine, put


def asked(shell: str, line: str) -> dict[str, str]:
    """Return the variables that a shell sets to ask for the last word of a line."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    return {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell] | {"_GPUTILE_COMPLETE": f"complete_{shell}"}


PATIENT = "import gputile.cli.options.candidates as c; c.WITHIN_S = c.GIVEN_UP_AFTER_S = 60.0; "  # on a busy machine


def completed(line: str, shell: str = "bash", before: str = PATIENT) -> list[str]:
    """Return what the last word of a line may become, as ``gputile`` tells a shell."""
    environment = os.environ | asked(shell, line)
    done = subprocess.run(
        arguments("main", before=before), env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return [each.partition("\t")[0] for each in done.stdout.splitlines() if each]  # fish is told helps, too


def names(line: str) -> list[str]:
    """Return the names that are read for the last word of a line; a busy machine gives reading up now and then."""
    for _ in range(20):
        if found := completed(line):
            return found
    return []


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


def test_names_in_a_cluster(server: FakeApiServer, kubeconfig: str) -> None:
    put(server, machine())
    for name in ("vision", "voice"):
        server.store.setdefault("/api/v1/namespaces", {})[name] = {"metadata": {"name": name}}
    server.store["/api/v1/namespaces/vision/pods"] = {"a": {"metadata": {"name": "a"}}}
    live = f"--kubeconfig {kubeconfig}"
    assert names(f"gputile inspect {live} ") == ["n"]
    assert completed(f"gputile inspect {live} n ") == []
    assert names(f"gputile simulate {live} --from-cluster --without-node ") == ["n"]
    assert completed(f"gputile simulate {live} --without-node ") == []
    assert names(f"gputile explain {live} -n v") == ["vision", "voice"]
    assert names(f"gputile status {live} --installed-in vo") == ["voice"]
    assert names(f"gputile explain {live} vision/") == ["vision/a"]
    assert names(f"gputile explain {live} -n vision ") == ["a"]
    assert names(f"gputile status {live} --context ") == ["c"]


@pytest.mark.parametrize("fault", ["silent", "refused", "absent", "broken"])
def test_nothing_is_said_where_no_cluster_answers(tmp_path: Path, silent: str, fault: str) -> None:
    refused, broken = tmp_path / "refused", tmp_path / "broken"
    refused.write_text(re.sub(r"127.0.0.1:\d+", "127.0.0.1:1", Path(silent).read_text()))
    broken.write_text("}")
    kubeconfig = {"silent": silent, "refused": refused, "broken": broken}.get(fault, tmp_path / "none")
    assert completed(f"gputile inspect --kubeconfig {kubeconfig} ", before="") == []


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
