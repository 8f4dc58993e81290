"""How commands speak: results on stdout, everything else on stderr, colours on a terminal only."""

import contextlib
import errno
import os
import sys
from enum import StrEnum
from typing import Any, NoReturn, TextIO

import typer

from gputile.tools.views.terminal_text import inert

NOT_WRITTEN = 1
BAD_INPUT = 2  # the exit code of typer's own usage errors
NOT_PLACED = 3
_UNFOLDED = 1_000_000  # columns: a sentence stays one line of YAML


class Output(StrEnum):
    """Formats of commands that show the cluster."""

    TABLE = "table"
    JSON = "json"


def coloured(stream: TextIO | None) -> bool:
    """Return whether to write colours to a stream: on a terminal, unless ``NO_COLOR`` or ``FORCE_COLOR`` say otherwise.

    An empty ``FORCE_COLOR`` turns colours off, as in other programs that use it.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return False
    forced = os.environ.get("FORCE_COLOR")
    if forced is not None:
        return forced != ""
    return stream is not None and stream.isatty()


def fail(message: str, code: int = BAD_INPUT) -> NoReturn:
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
    """Print a result; leave the program where nothing takes it."""
    stdout: TextIO | None = sys.stdout
    try:
        if stdout is None:  # so Python says that the descriptor was closed before it began
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        stdout.write(_writable(text, stdout.encoding))
        stdout.flush()
    except BrokenPipeError:
        raise  # a reader that has seen enough is no error: typer ends without a word
    except OSError as error:
        if stdout is not None:
            with contextlib.suppress(OSError):
                stdout.close()  # or Python tries again when it ends, and complains again
        fail(f"cannot write to standard output: {error.strerror or error}", NOT_WRITTEN)


def _writable(text: str, encoding: str | None) -> str:
    """Return ``text`` with the codes of characters that an encoding has not."""
    if encoding is None or text.isascii():
        return text
    return text.encode(encoding, "backslashreplace").decode(encoding)


def write_json(value: Any) -> None:
    """Print a result as JSON that people can read too."""
    import msgspec

    from gputile.api.old_keys import with_old_keys

    write(msgspec.json.format(msgspec.json.encode(with_old_keys(value)), indent=2).decode() + "\n")


def write_yaml(value: Any) -> None:
    """Print a result as YAML, with the keys that its JSON has."""
    import msgspec
    import yaml

    from gputile.api.old_keys import with_old_keys

    plain = msgspec.json.decode(msgspec.json.encode(with_old_keys(value)))
    write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=_UNFOLDED))
