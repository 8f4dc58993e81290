"""Tells what the terminal can show, and writes lines and drawings that fit."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gputile.cli.output.streams import coloured, note, obeys_codes, write
from gputile.tools.views.terminal_text import columns_of, first_rows, inert, shortened, table, wrapped

if TYPE_CHECKING:
    from gputile.api.core import Pod
    from gputile.tools.simulator.remedies import Remedy
    from gputile.tools.views.gpu_bars import BarGroups, Line, NodeBars, Paper, Span
    from gputile.tools.views.inspect import NodeSummary

COLUMNS_OF_A_PIPE = 100  # of drawings; tables have a line for each row there
_COLOURS = ("42;30", "44;97", "43;30", "45;97", "46;30", "41;97", "104;30", "102;30", "103;30", "105;30", "106;30")
_FAINT = "90"
_NOTE = "note: "


def columns() -> int | None:
    """Return how many columns there are: ``COLUMNS``, else the terminal's; None where the output is no terminal."""
    return shutil.get_terminal_size((0, 0)).columns or None


def lines() -> int | None:
    """Return how many lines the terminal has; None where the output is no terminal, or it does not say."""
    return shutil.get_terminal_size((0, 0)).lines or None


def redraws() -> bool:
    """Return whether the output is a terminal that shows the latest alone where it is told so."""
    return obeys_codes(sys.stdout)


def paper(*, plain: bool) -> "Paper":
    """Return what drawings go on; ``plain`` asks for ASCII."""
    from gputile.tools.views.gpu_bars import Paper

    try:
        "█░╳".encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        plain = True
    return Paper(columns() or COLUMNS_OF_A_PIPE, coloured(sys.stdout), plain)


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


def bars(nodes: "Sequence[NodeSummary]", pods: "Iterable[Pod]") -> "list[NodeBars]":
    """Return the nodes with a bar for each GPU; ``pods`` say which workload each of the cluster's pods belongs to."""
    from gputile.tools.simulator.outcomes import workload_name, workload_of
    from gputile.tools.views.gpu_bars import OTHER_PODS, node_bars

    if len({pod.namespace for node in nodes for pod in node.pods}) > 1:
        return node_bars(nodes, lambda pod: pod.namespace)
    names = {pod.key: workload_name(workload_of(pod)) for pod in pods}
    return node_bars(nodes, lambda pod: names.get(f"{pod.namespace}/{pod.name}", OTHER_PODS))


def draw(shown: "Sequence[NodeBars]", groups: "BarGroups", *, plain: bool) -> None:
    """Print the drawing; ``plain`` asks for ASCII, ``groups`` have the letters and colours of the pieces."""
    from gputile.tools.views.gpu_bars import draw as drawn

    on = paper(plain=plain)
    write_drawing(drawn(shown, groups, on), on)


def write_remedies(changes: "Sequence[Remedy]") -> None:
    """Print the changes each of which would be enough; nothing where there are none."""
    if changes:
        write("It would fit if\n")
    for remedy in changes:
        where = f" (then on {', '.join(remedy.nodes)})" if remedy.nodes else ""
        write_text(f"{remedy.change}{where}", bullet="- ")
