"""What a command loads before it works: nothing that another command needs."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gputile.cli.app import NODES_AND_SERVICES, PEOPLE, app
from gputile.version import VERSION
from tests.unit.cli.programs import arguments

HEAVY = ("aiohttp", "asyncio", "highspy", "msgspec", "numpy", "pydantic", "rich.console", "ssl", "uvloop", "yaml")
SERVING = {"aiohttp.web", "cryptography", "highspy", "prometheus_client", "pydantic", "rich.console"}
COMMANDS = [*PEOPLE, *NODES_AND_SERVICES]


def imported(program: str, *words: str, fails: bool = False) -> set[str]:
    """Return the modules that a program has imported when it ends."""
    tell = "import atexit, sys; atexit.register(lambda: sys.stderr.write(' '.join(sys.modules)))\n"
    done = subprocess.run(arguments(program, *words, before=tell), capture_output=True, text=True, check=False)
    assert bool(done.returncode) == fails, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["version"], *([name, "--help"] for name in PEOPLE)])
def test_help_loads_nothing_of_what_commands_work_with(words: list[str]) -> None:
    found = imported("main", *words)
    assert not found.intersection(HEAVY)
    own = {f"gputile.cli.commands.{PEOPLE[words[0]].module}"} if words[0] in PEOPLE else set()
    others = {f"gputile.cli.commands.{each.module}" for each in (*PEOPLE.values(), *NODES_AND_SERVICES.values())} - own
    assert not found.intersection(others)
    assert own <= found, "the modules are those of the table"


def test_completion_of_a_command_imports_none() -> None:
    done = subprocess.run(
        arguments("kubectl_complete_gputile", "s", before="import atexit, sys; "
                  "atexit.register(lambda: sys.stderr.write(' '.join(sys.modules)))\n"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "simulate\nstatus\nschema\n:4\n"
    assert not {f"gputile.cli.commands.{name}" for name in COMMANDS} & set(done.stderr.split())


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
    entry = (PEOPLE | NODES_AND_SERVICES)[name]  # type: ignore[operator]
    assert command.name == name
    assert (command.help or "").split()[0] == entry.help.split()[0]


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert version("gputile") == VERSION


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        ("kubectl_complete_gputile", ["status", "--output", ""], "table\njson\nyaml\n:4\n"),
        ("kubectl_complete_gputile", ["simulate", "--filename", ""], ":0\n"),
        ("kubectl_complete_gputile", ["simulate", "--without-node "], ":0\n"),
        ("kubectl_complete_inspect_cgpu", ["--out"], "--output\n:4\n"),
    ],
)
def test_completion_speaks_as_kubectl_reads(program: str, words: list[str], said: str) -> None:
    done = subprocess.run(arguments(program, *words), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (said, "")


def test_kubectl_gputile_has_the_commands_for_people() -> None:
    done = subprocess.run(arguments("kubectl_gputile", "--help"), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: kubectl gputile [OPTIONS] COMMAND")
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and line[2] != " "}
    assert listed >= set(PEOPLE)
    assert not listed & set(NODES_AND_SERVICES)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_at_80_columns_has_every_default_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import typer.main
    from typer.testing import CliRunner

    monkeypatch.setenv("COLUMNS", "80")
    groups = [([name], typer.main.get_command(app).commands[name])]  # type: ignore[attr-defined]
    groups += [([name, sub], each) for sub, each in getattr(groups[0][1], "commands", {}).items()]
    for words, command in groups:
        text = CliRunner().invoke(app, [*words, "--help"]).stdout
        assert max(map(len, text.splitlines())) <= 80
        told = " ".join(text.split())
        for parameter in command.params:
            default = getattr(parameter.default, "value", parameter.default)
            if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
                name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
                shown = re.search(rf"(?<!\S){re.escape(name)}(?!\S).*?\[default: ([^\]]*)\]", told)
                assert shown is not None, (words, parameter.opts)
                assert str(default) in shown[1].replace(" ", ""), (words, parameter.opts, shown[1])


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
def test_bash_completes_with_the_script_that_it_is_given(tmp_path: Path) -> None:
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
