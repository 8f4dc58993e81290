"""``make soak``: tests that run for as long as they are let, each round with other chances.

A part is a module with a function that adds its arguments to a parser, and one that runs it and returns 0 where it
found nothing, else 1. What it found it prints, with the command that shows it again.
"""

import argparse
import sys
from typing import Protocol

from tests.soak import stateful, system
from tests.soak.parsers import NativeParsers, PythonParsers


class Part(Protocol):
    """One way to soak."""

    def arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, minutes: float, given: argparse.Namespace) -> int: ...


PARTS: dict[str, Part] = {
    "stateful": stateful,
    "native": NativeParsers(),
    "system": system,
    "fuzz": PythonParsers(),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the part that is named, for the minutes that are given."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    commands = parser.add_subparsers(dest="part", required=True)
    for name, part in PARTS.items():
        command = commands.add_parser(name, help=(part.__doc__ or "").partition("\n")[0])
        command.add_argument("--minutes", type=float, default=60.0, help="a round that has begun is ended (60)")
        part.arguments(command)
    given = parser.parse_args(arguments)
    try:
        return PARTS[given.part].run(given.minutes, given)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
