"""Options under their old names: read as ever, told in a line, not in the help."""

from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.cli.parsing.old_options import OLD_OPTIONS

run = CliRunner()
ALL = [(command, old, new) for command, names in OLD_OPTIONS.items() for old, new in names.items()]


def invoked(tmp_path: Path, *words: str) -> tuple[int, str]:
    result = run.invoke(app, [*words, "--kubeconfig", str(tmp_path / "none")])
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("words", "old"),
    [
        (["--namespace", "n"], ["--namespace"]),
        (["--namespace=n"], ["--namespace"]),
        (["-n", "n"], ["-n"]),
        (["-nn"], ["-n"]),
        (["--namespace", "x", "-n", "n", "-nn"], ["--namespace", "-n"]),
    ],
)
def test_an_old_name_is_read_and_told_once(tmp_path: Path, words: list[str], old: list[str]) -> None:
    code, said = invoked(tmp_path, "status", *words)
    notes = [f"note: {each} is called --installed-in now; the old name will go in version 0.3" for each in old]
    assert said.splitlines()[: len(old)] == notes
    plain = invoked(tmp_path, "status", "--installed-in", "n")
    assert (code, said.splitlines()[len(old) :]) == (plain[0], plain[1].splitlines())


@pytest.mark.parametrize(("command", "old", "new"), ALL)
def test_what_is_old_is_no_option_any_more_and_what_is_new_is_one(command: str, old: str, new: str) -> None:
    group: Any = typer.main.get_command(app)
    options = {name for parameter in group.commands[command].params for name in parameter.opts}
    assert new in options
    assert old not in options
    assert f"{old} " not in run.invoke(app, [command, "--help"]).stdout


def test_what_follows_two_dashes_is_no_option(tmp_path: Path) -> None:
    _, said = invoked(tmp_path, "status", "--", "--namespace")
    assert "note:" not in said
