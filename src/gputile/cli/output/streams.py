"""Prints results on stdout and everything else on stderr, with colours on a terminal only."""

import contextlib
import errno
import io
import os
import sys
from enum import StrEnum
from typing import Any, NoReturn, TextIO

import typer

from gputile.cli.output.exit_codes import ExitCode
from gputile.tools.views.terminal_text import inert

NOT_WRITTEN = ExitCode.FAILED
BAD_INPUT = ExitCode.BAD_INPUT
NOT_PLACED = ExitCode.NOT_AS_ASKED
_PLAIN_TERMINALS = ("dumb", "unknown")  # by TERM: they obey no codes


class Output(StrEnum):
    """Formats of commands that show the cluster."""

    TABLE = "table"
    JSON = "json"


def coloured(stream: TextIO | None) -> bool:
    """Return whether to write colours to a stream: on a terminal, unless ``NO_COLOR`` or ``FORCE_COLOR`` say otherwise.

    An empty ``FORCE_COLOR`` turns colours off, as in other programs that use it.
    """
    if os.environ.get("NO_COLOR") or is_plain():
        return False
    forced = os.environ.get("FORCE_COLOR")
    if forced is not None:
        return forced != ""
    return stream is not None and stream.isatty()


def is_plain() -> bool:
    """Return whether the terminal obeys no codes, as ``TERM`` says."""
    return os.environ.get("TERM", "").lower() in _PLAIN_TERMINALS


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
    """Print a result; leave the program where nothing takes it."""
    stdout: TextIO | None = sys.stdout
    try:
        if stdout is None:  # so Python says that the descriptor was closed before it began
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        _write_all(stdout, _writable(text, stdout.encoding))
    except BrokenPipeError:
        raise  # a reader that has seen enough is no error: typer ends without a word
    except OSError as error:
        if stdout is not None:
            with contextlib.suppress(OSError):
                stdout.close()  # or Python tries again when it ends, and complains again
        fail(f"cannot write to standard output: {error.strerror or error}", NOT_WRITTEN)


def _write_all(stream: TextIO, text: str) -> None:
    """Write all of ``text``: where Python does not buffer (PYTHONUNBUFFERED), the file may take less at a time.

    Raises:
        OSError: the file takes no more.
    """
    stream.flush()
    file = getattr(stream, "buffer", None)
    if not isinstance(file, io.RawIOBase):
        stream.write(text)
        stream.flush()
        return
    left = memoryview(text.encode(stream.encoding))
    while left:
        taken = file.write(left)
        if taken is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        left = left[taken:]


def _writable(text: str, encoding: str | None) -> str:
    """Return ``text`` with the codes of characters that an encoding has not."""
    if encoding is None or _can_be_written(text, encoding):
        return text
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _can_be_written(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _takes(text: str) -> bool:
    """Return whether the standard output's encoding has all characters of ``text``."""
    stdout: TextIO | None = sys.stdout
    return stdout is None or stdout.encoding is None or _can_be_written(text, stdout.encoding)


def write_json(value: Any) -> None:
    """Print a result as JSON that people can read too, in ASCII where the output's encoding lacks a character."""
    import json

    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
    if not _takes(text):  # characters beyond ASCII are in texts only
        text = "".join(each if each.isascii() else json.dumps(each)[1:-1] for each in text)
    write(text)


def write_yaml(value: Any) -> None:
    """Print a result as YAML, with the keys that its JSON has."""
    import msgspec

    from gputile.cli.output.yaml_text import yaml_text

    plain = msgspec.json.decode(msgspec.json.encode(value))
    write(yaml_text([plain]))
