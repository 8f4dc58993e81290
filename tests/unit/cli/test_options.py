"""One option, one name and one meaning, over all commands."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main
from typer.testing import CliRunner

from gputile.cli.app import app

"""What a help that speaks of something belongs to, so that a second name for it is noticed."""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name in command.commands:
            yield from commands(command.commands[name], (*path, name))
    else:
        yield path, command


def options() -> Iterator[tuple[str, Any]]:
    """Yield the options that people see, each with its command."""
    for path, command in commands(typer.main.get_command(app)):
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                yield " ".join(path), parameter


def long_name(option: Any) -> str:
    return next(str(name) for name in option.opts if name.startswith("--"))


def meaning(option: Any) -> str:
    """Return the first clause of an option's help: a command may add what is special to it."""
    first = re.split(r"[;.](?:\s|$)", option.help or "")[0]
    assert first, long_name(option)
    return first


def test_a_name_means_one_thing() -> None:
    found = defaultdict[str, set[tuple[Any, ...]]](set)
    for _, option in options():
        short = tuple(name for name in option.opts if not name.startswith("--"))
        found[long_name(option)].add((meaning(option), short, option.metavar, option.is_flag))
    assert {name: each for name, each in found.items() if len(each) > 1} == {}


def test_a_short_name_is_of_one_option() -> None:
    found = defaultdict[str, set[str]](set)
    for _, option in options():
        for name in option.opts:
            if not name.startswith("--"):
                found[name].add(long_name(option))
    assert {name: each for name, each in found.items() if len(each) > 1} == {}


def test_a_thing_has_one_name() -> None:
    found = defaultdict[str, set[str]](set)
    for _, option in options():
        found[meaning(option).lower()].add(long_name(option))
    assert {text: names for text, names in found.items() if len(names) > 1} == {}


EXAMPLES: Final = Path(__file__).resolve().parents[3] / "examples"
EXAMPLE, POD = str(EXAMPLES / "cluster.yaml"), str(EXAMPLES / "first-pod.yaml")


@pytest.mark.parametrize("words", [["simulate", "-f", POD], ["inspect"]])
@pytest.mark.parametrize("option", ["--kubeconfig", "--context"])
def test_options_of_a_live_cluster_beside_files_are_told_to_count_for_nothing(words: list[str], option: str) -> None:
    done = CliRunner().invoke(app, [*words, "--cluster", EXAMPLE, option, "other"])
    assert done.exit_code == 0
    said = f"note: {option} is ignored: the cluster is read from the files of --cluster"
    assert said in done.stderr.splitlines()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", "-o", "xml"], "'xml' is not one of 'table', 'bars', 'json', 'yaml'"),
        (["explain"], "Missing argument 'POD'"),
        (["inspect", "--cluster", EXAMPLE, "-n", "A b"], 'error: --namespace: Invalid value: "A b"'),
        (["explain", "p", "--cluster", EXAMPLE, "-n", ""], "there is no pod default/p"),
    ],
)
def test_a_value_that_is_none_is_told_in_plain_words(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("words", [[], ["explain"]])
def test_help_as_a_command(words: list[str]) -> None:
    said, wanted = CliRunner().invoke(app, ["help", *words]), CliRunner().invoke(app, [*words, "--help"])
    assert (said.exit_code, said.stdout) == (0, wanted.stdout)


def test_helps_show_what_an_option_takes_in_words() -> None:
    """Not the name of its type: <str>, <int range>."""
    for command, option in options():
        choices = getattr(option.type, "choices", ())
        assert option.is_flag or option.metavar or choices, (command, long_name(option))


@pytest.mark.requirement("B4")
@pytest.mark.parametrize("name", ["../../nodes", "a/b?c=", "x HTTP/1.1\r\nX-Bad: 1", "A b"])
def test_a_namespace_is_a_name_before_it_is_part_of_a_path(name: str) -> None:
    for path, option in options():
        if option.opts[0] not in ("--namespace", "--installed-in", "--lease-namespace"):
            continue
        done = CliRunner().invoke(app, [*path.split(), option.opts[0], name])
        assert f"{option.opts[0]}: Invalid value" in done.stderr, path
    done = CliRunner().invoke(app, ["explain", f"{name.replace('/', '?')}/p"])
    assert "Invalid value" in done.stderr
