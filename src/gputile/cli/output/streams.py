"""Prints results on stdout and everything else on stderr, with colours on a terminal only."""

import os
import sys
from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import Any, Final, NoReturn, TextIO

import typer

from gputile.tools.views.terminal_text import inert

_BREAKS: Final = frozenset("\x85\u2028\u2029")  # ends of lines for YAML 1.1: only escaped they stay what they are
_UNFOLDED: Final = 1_000_000  # columns: a sentence stays one line


class ExitCode(IntEnum):
    """What a command leaves with; ``docs/generator/reasons.toml`` says what each means."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2  # also the code of typer's own usage errors
    NOT_AS_ASKED = 3


BAD_INPUT = ExitCode.BAD_INPUT
NOT_PLACED = ExitCode.NOT_AS_ASKED


class Output(StrEnum):
    """Formats of commands that show the cluster."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_data(self) -> bool:
        """Whether programs read it."""
        return self is not Output.TABLE


class DecisionFormat(StrEnum):
    """What to print."""

    TABLE = "table"
    WIDE = "wide"
    INSPECT = "inspect"
    JSON = "json"
    YAML = "yaml"
    HTML = "html"


def coloured(stream: TextIO) -> bool:
    """Return whether to write colours: on a terminal, unless ``NO_COLOR`` or ``FORCE_COLOR`` say otherwise."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or obeys_codes(stream)


def obeys_codes(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that obeys codes."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def fail(message: str, code: ExitCode = BAD_INPUT) -> NoReturn:
    """Print an error and leave with ``code``."""
    typer.secho("error: ", nl=False, err=True, fg=typer.colors.RED, bold=True, color=coloured(sys.stderr))
    typer.echo(_harmless(message), err=True)
    raise typer.Exit(code)


def note(message: str) -> None:
    """Print something that is worth knowing and stops nobody."""
    typer.secho("note: ", nl=False, err=True, fg=typer.colors.YELLOW, color=coloured(sys.stderr))
    typer.echo(_harmless(message), err=True)


def _harmless(message: str) -> str:
    """Return the lines of a message, which may quote what others wrote, without what a terminal would obey."""
    return "\n".join(map(inert, message.split("\n")))


def write(text: str) -> None:
    """Print a result."""
    typer.echo(text, nl=False, color=True)  # as it is: who drew it has asked whether there are colours


def write_json(value: Any) -> None:
    """Print a result as JSON that people can read too."""
    import msgspec

    write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def write_data(value: Any, output: Output) -> None:
    """Print a result for programs."""
    (write_yaml if output is Output.YAML else write_json)(value)


def write_yaml(value: Any) -> None:
    """Print a result as YAML, with the keys that its JSON has."""
    import msgspec

    write(yaml_text([msgspec.json.decode(msgspec.json.encode(value))]))


def yaml_text(documents: Iterable[Any], *, width: int = _UNFOLDED) -> str:
    """Return the documents, of plain values, as YAML; lines longer than ``width`` columns are folded.

    Texts have quotes where PyYAML or Kubernetes would read something else without: "1e5", "08" and "y".
    """
    import yaml

    from gputile.support.yaml_loader import add_kubernetes_scalars

    class Dumper(yaml.SafeDumper):
        pass

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if _BREAKS & set(text) else None)

    add_kubernetes_scalars(Dumper)
    Dumper.add_representer(str, represent_text)
    text: str = yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=width)
    return text
