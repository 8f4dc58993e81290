"""Tells what the terminal can show, its columns, colours and characters, and writes lines that fit."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gputile.cli.output.streams import coloured, is_plain, note, write
from gputile.tools.views.table import first_rows, table
from gputile.tools.views.terminal_text import columns_of, inert, shortened, wrapped

if TYPE_CHECKING:
    from gputile.tools.views.gpu_bars import Line, Paper, Span

COLUMNS_OF_A_PIPE = 100  # of drawings; tables have a line for each row there
_COLOURS = ("42;30", "44;97", "43;30", "45;97", "46;30", "41;97", "104;30", "102;30", "103;30", "105;30", "106;30")
_FAINT = "90"
_NOTE = "note: "
_MOST_DIGITS = 5  # of a number of columns: no terminal has more


def columns() -> int | None:
    """Return how many columns there are: ``COLUMNS``, else the terminal's; None where the output is no terminal."""
    told = os.environ.get("COLUMNS", "")
    if told.isascii() and told.isdecimal() and len(told) <= _MOST_DIGITS and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (AttributeError, OSError, ValueError):  # closed, or none that the system knows
        return None


def lines() -> int | None:
    """Return how many lines the terminal has; None where the output is no terminal, or it does not say."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or None
    except (AttributeError, OSError, ValueError):
        return None


def redraws() -> bool:
    """Return whether the output is a terminal that shows the latest alone where it is told so."""
    return sys.stdout is not None and sys.stdout.isatty() and not is_plain()


def ascii_only() -> bool:
    """Return whether the output takes nothing but ASCII: by its encoding, or because the locale is C.

    Python has a locale of C write UTF-8, and then says so in ``LC_CTYPE`` itself.
    """
    try:
        "█░╳".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return True
    locale = os.environ.get("LC_ALL")
    if not locale:
        own = os.environ.get("LC_CTYPE", "")
        locale = os.environ.get("LANG", "") if own in ("C.UTF-8", "C.utf8", "UTF-8") else own or os.environ.get("LANG")
    return locale in ("C", "POSIX")


def paper(*, plain: bool) -> "Paper":
    """Return what drawings go on; ``plain`` asks for ASCII."""
    from gputile.tools.views.gpu_bars import Paper

    return Paper(columns() or COLUMNS_OF_A_PIPE, coloured(sys.stdout), plain or ascii_only())


def write_table(rows: Sequence[Sequence[str]]) -> None:
    """Print a table that is no wider than the terminal."""
    write(table(rows, columns()))


def write_first_rows(rows: Sequence[Sequence[str]], most: int) -> int:
    """Print as much of a table as ``most`` lines have room for; return how many rows are left."""
    text, count = first_rows(rows, columns(), most)
    write("".join(f"{line}\n" for line in text))
    return len(rows) - count


def note_line(message: str) -> None:
    """Print a note in one line of the terminal, whatever of it has room there."""
    width = columns()
    text = " ".join(inert(message).split())
    note(text if width is None else shortened(text, width - len(_NOTE)))


def lines_of_note(message: str) -> int:
    """Return how many lines of the terminal a note takes."""
    width = columns()
    return 1 if width is None else -(-(len(_NOTE) + columns_of(inert(message))) // width)


def write_text(text: str, bullet: str = "") -> None:
    """Print a text, broken between words where the terminal ends; all its lines stand beside ``bullet``."""
    width, indent = columns(), " " * len(bullet)
    lines = wrapped(inert(text), width - len(bullet)) if width is not None else [inert(text)]
    write("".join(f"{indent if number else bullet}{line}\n" for number, line in enumerate(lines)))


def write_drawing(lines: Iterable["Line"], on: "Paper") -> None:
    """Print the lines of a drawing."""
    write("".join("".join(map(_coloured if on.coloured else _plain, line)).rstrip() + "\n" for line in lines))


def _plain(span: "Span") -> str:
    return span.text


def _coloured(span: "Span") -> str:
    style = _FAINT if span.faint else None if span.group is None else _COLOURS[span.group % len(_COLOURS)]
    return span.text if style is None else f"\x1b[{style}m{span.text}\x1b[0m"
