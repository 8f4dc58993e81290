"""What a command loads before it works: nothing that another command needs."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gputile.cli.app import SYSTEM_COMMANDS, USER_COMMANDS, app
from gputile.version import VERSION
from tests.unit.cli.programs import arguments

HEAVY = ("aiohttp", "asyncio", "highspy", "msgspec", "numpy", "pydantic", "rich.console", "ssl", "uvloop", "yaml")
SERVING = {"aiohttp.web", "cryptography", "highspy", "prometheus_client", "pydantic", "rich.console"}
COMMANDS = [*USER_COMMANDS, *SYSTEM_COMMANDS]


def imported(program: str, *words: str, fails: bool = False) -> set[str]:
    """Return the modules that a program has imported when it ends."""
    tell = "import atexit, sys; atexit.register(lambda: sys.stderr.write(' '.join(sys.modules)))\n"
    done = subprocess.run(arguments(program, *words, before=tell), capture_output=True, text=True, check=False)
    assert bool(done.returncode) == fails, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "words", [["--version"], ["--help"], ["version"], *([each, "--help"] for each in USER_COMMANDS)]
)
def test_help_loads_nothing_of_what_commands_work_with(words: list[str]) -> None:
    found = imported("main", *words)
    assert not found.intersection(HEAVY)
    own = {f"gputile.cli.commands.{USER_COMMANDS[words[0]].module}"} if words[0] in USER_COMMANDS else set()
    others = {
        f"gputile.cli.commands.{each.module}" for each in (*USER_COMMANDS.values(), *SYSTEM_COMMANDS.values())
    } - own
    assert not found.intersection(others)
    assert own <= found, "the modules are those of the table"


def test_deciding_about_files_needs_neither_rich_nor_a_client(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        "apiVersion: gputile.io/v1alpha1\nkind: Cluster\nnodes: [{name: 'n', mode: share, gpus: {memory: 15GiB}}]\n"
    )
    spec = "{containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 1}}}]}"
    (tmp_path / "pod.yaml").write_text(f"{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {spec}}}")
    files = ("--cluster", str(tmp_path / "cluster.yaml"), "-f", str(tmp_path / "pod.yaml"))
    found = imported("main", "simulate", *files)
    assert not {"aiohttp", "asyncio", "pydantic", "rich.console", "highspy"} & found


@pytest.mark.requirement("V2")
@pytest.mark.parametrize("words", [["inspect"], ["status", "--installed-in", "gputile"], ["explain", "p"]])
def test_a_look_at_a_live_cluster_loads_nothing_of_services(words: list[str], kubeconfig: str) -> None:
    """It needs what decides, and requests to an API server; not what the services serve with."""
    found = imported("main", *words, "--kubeconfig", kubeconfig, fails=words[0] != "inspect")
    assert not SERVING & found


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_is_that_of_the_command(name: str) -> None:
    """The help of the whole does not import the command, so it has words of its own: they begin alike."""
    import typer.main

    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    entry = (USER_COMMANDS | SYSTEM_COMMANDS)[name]  # type: ignore[operator]
    assert command.name == name
    assert (command.help or "").split()[0] == entry.help.split()[0]


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert version("gputile") == VERSION


def test_kubectl_gputile_has_the_commands_for_people() -> None:
    done = subprocess.run(arguments("kubectl_gputile", "--help"), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: kubectl gputile [OPTIONS] COMMAND")
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and line[2] != " "}
    assert listed >= set(USER_COMMANDS)
    assert not listed & set(SYSTEM_COMMANDS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
def test_bash_completes_with_the_script_that_it_is_given(tmp_path: Path) -> None:
    program = tmp_path / "gputile"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(arguments("main"))} "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = """
        source <(_GPUTILE_COMPLETE=source_bash gputile)
        COMP_WORDS=(gputile simulate --compare "b") COMP_CWORD=3
        $(complete -p gputile | sed 's/.*-F \\([^ ]*\\) .*/\\1/') gputile
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["binpack"], "")
