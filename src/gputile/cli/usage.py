"""What is wrong with the words of a command line, said as every other error is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from typer._click.exceptions import NoArgsIsHelpError, UsageError  # Typer has its own copy of click, and no other name

from gputile.cli.output import fail

_PLAIN: Final = {
    "is not a valid int range.": "is not a whole number.",
    "is not a valid int.": "is not a whole number.",
    "is not a valid float range.": "is not a number.",
    "is not a valid float.": "is not a number.",
}
"""What the parser of options says of its types, and what people say."""


class PlainUsage:
    """A command or group, mixed in before Typer's class, whose usage errors are one line."""

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
    except NoArgsIsHelpError:
        raise  # its message is the help
    except UsageError as error:
        said = " ".join(error.format_message().split())
        for theirs, plain in _PLAIN.items():
            said = said.replace(theirs, plain)
        said = said.rstrip(".")
        command = error.ctx.command_path if error.ctx is not None else command
        fail(f"{said[:1].lower()}{said[1:]}; see '{command} --help'")
