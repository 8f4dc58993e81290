"""Commands that get their options as one object are like any other on the command line."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from gputile.cli.app import plain
from gputile.cli.options.common import takes

run = CliRunner()


@dataclass(frozen=True)
class Colours:
    first: Annotated[str, typer.Option("--first", "-f", help="The first one.")] = "red"
    more: Annotated[list[str] | None, typer.Option("--more", help="Others.")] = None


@takes(Colours)
def paint(colours: Colours) -> None:
    """Name the colours."""
    typer.echo(colours)


def test_each_field_is_an_option_with_its_default() -> None:
    program = plain(paint, "paint")
    assert run.invoke(program, []).stdout.strip() == str(Colours())
    asked = run.invoke(program, ["-f", "blue", "--more", "green", "--more", "grey"])
    assert asked.stdout.strip() == str(Colours("blue", ["green", "grey"]))
    assert run.invoke(program, ["--second", "blue"]).exit_code == 2


def test_the_help_is_that_of_the_function_and_of_the_fields() -> None:
    told = run.invoke(plain(paint, "paint"), ["--help"]).stdout
    assert all(text in told for text in ("Name the colours.", "The first one.", "Others.", "red"))


@dataclass(frozen=True)
class Walls:
    name: Annotated[str, typer.Option("--name", help="Which wall.")]
    colour: Annotated[str, typer.Option("--colour", help="Its colour.")] = "white"


@takes(Walls)
def plaster(walls: Walls) -> None:
    """Name the wall."""
    typer.echo(walls)


def test_a_field_without_a_default_has_to_be_given() -> None:
    program = plain(plaster, "plaster")
    assert run.invoke(program, ["--name", "north"]).stdout.strip() == str(Walls("north"))
    assert run.invoke(program, []).exit_code == 2
