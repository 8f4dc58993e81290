"""Words what is wrong with a command line, in the form that every other error has."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from typer._click.exceptions import NoArgsIsHelpError, UsageError  # Typer has its own copy of click, and no other name

import gputile
from gputile.cli.output.exit_codes import ExitCode
from gputile.cli.output.streams import fail

_PLAIN: Final = {
    "is not a valid int range.": "is not a whole number.",
    "is not a valid int.": "is not a whole number.",
    "is not a valid float range.": "is not a number.",
    "is not a valid float.": "is not a number.",
}
"""What the parser of options says of its types, and what people say."""


class PlainUsage:
    """A command or group, mixed in before Typer's class, whose usage errors are one line.

    Nothing reads lines that people type, so an EOFError is one of an import: a cached module that is cut off.
    """

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **settings: Any) -> Any:
        """Parse the words; leave the program where they are wrong."""
        with _told(f"{parent.command_path} {info_name}" if parent is not None else str(info_name)):
            return super().make_context(info_name, args, parent, **settings)  # type: ignore[misc]

    def invoke(self, ctx: Any) -> Any:
        """Run the command, or the one that a group's words name; leave the program where they name none."""
        with _told(ctx.command_path):
            return super().invoke(ctx)  # type: ignore[misc]


@contextmanager
def _told(command: str) -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        place = f"remove the directories __pycache__ below {Path(gputile.__file__).parent}, or install it again"
        fail(f"a cached module of Python is cut off ({error}): {place}", ExitCode.FAILED)
    except NoArgsIsHelpError:
        raise  # its message is the help
    except UsageError as error:
        said = " ".join(error.format_message().split())
        for theirs, plain in _PLAIN.items():
            said = said.replace(theirs, plain)
        said = said.rstrip(".")
        command = error.ctx.command_path if error.ctx is not None else command
        fail(f"{said[:1].lower()}{said[1:]}; see '{command} --help'")
