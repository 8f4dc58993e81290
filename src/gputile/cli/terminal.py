"""Prints results to stdout, and notes, errors and progress to stderr.

Tables and drawings use the width and the colours of the terminal. Nothing here hides the cursor or
changes the terminal's settings, because an interrupt may end the process at any moment.
"""

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TextIO, TypeVar

import typer

from gputile.tools.views.terminal_text import aligned, columns_of, inert, shortened, wrapped

if TYPE_CHECKING:
    from gputile.api.core import Pod
    from gputile.tools.simulator.remedies import Remedy
    from gputile.tools.views.gpu_bars import BarGroups, Canvas, Line, NodeBars, Span
    from gputile.tools.views.inspect import NodeSummary

# YAML 1.1 treats these characters as line breaks. Only escaping preserves them.
_BREAKS: Final = frozenset("\x85\u2028\u2029")
_UNFOLDED: Final = 1_000_000  # columns, so that a long sentence stays on one line


class ExitCode(IntEnum):
    """The exit codes of commands. ``docs/generator/reasons.toml`` explains each code."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2  # also the code of typer's own usage errors
    NOT_AS_ASKED = 3


BAD_INPUT = ExitCode.BAD_INPUT
NOT_PLACED = ExitCode.NOT_AS_ASKED


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_data(self) -> bool:
        return self is not Output.TABLE


class DecisionFormat(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    INSPECT = "inspect"
    JSON = "json"
    YAML = "yaml"
    HTML = "html"


def coloured(stream: TextIO) -> bool:
    """Return whether to write colours: only to terminals, unless NO_COLOR or FORCE_COLOR is set."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or supports_escapes(stream)


def supports_escapes(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal that supports escape codes."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def fail(message: str, code: ExitCode = BAD_INPUT) -> NoReturn:
    typer.secho(
        "error: ", nl=False, err=True, fg=typer.colors.RED, bold=True, color=coloured(sys.stderr)
    )
    typer.echo(_printable(message), err=True)
    raise typer.Exit(code)


def note(message: str) -> None:
    typer.secho("note: ", nl=False, err=True, fg=typer.colors.YELLOW, color=coloured(sys.stderr))
    typer.echo(_printable(message), err=True)


def _printable(message: str) -> str:
    """Remove control characters from a message, because the message may quote untrusted text."""
    return "\n".join(map(inert, message.split("\n")))


def write(text: str) -> None:
    typer.echo(text, nl=False, color=True)  # Callers use escape codes only if ``coloured()``.


def write_data(value: Any, output: StrEnum) -> None:
    """Print a result as YAML if ``output`` is "yaml", or else as indented JSON."""
    import msgspec

    encoded = msgspec.json.encode(value)
    if output == "yaml":
        write(yaml_text([msgspec.json.decode(encoded)]))
    else:
        write(msgspec.json.format(encoded, indent=2).decode() + "\n")


def yaml_text(documents: Iterable[Any], *, width: int = _UNFOLDED) -> str:
    """Return documents of plain values as YAML. Lines longer than ``width`` columns are folded.

    Strings such as "1e5", "08" and "y" are quoted. PyYAML or Kubernetes would otherwise decode them
    as another type.
    """
    import yaml

    from gputile.support.yaml_loader import add_kubernetes_scalars

    class Dumper(yaml.SafeDumper):
        pass

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style='"' if _BREAKS & set(text) else None
        )

    add_kubernetes_scalars(Dumper)
    Dumper.add_representer(str, represent_text)
    text: str = yaml.dump_all(
        documents, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=width
    )
    return text


COLUMNS_OF_A_PIPE = 100  # the width of drawings in a pipe; tables in a pipe have no maximum width
_COLOURS = (
    "42;30",
    "44;97",
    "43;30",
    "45;97",
    "46;30",
    "41;97",
    "104;30",
    "102;30",
    "103;30",
    "105;30",
    "106;30",
)
_FAINT = "90"
_NOTE = "note: "


def columns() -> int | None:
    """Return $COLUMNS, or else the terminal's width, or None if stdout is not a terminal."""
    return shutil.get_terminal_size((0, 0)).columns or None


def lines() -> int | None:
    """Return the terminal's number of lines, or None if stdout is not a terminal."""
    return shutil.get_terminal_size((0, 0)).lines or None


def redraws() -> bool:
    return supports_escapes(sys.stdout)


def canvas(*, plain: bool) -> "Canvas":
    """Return a canvas for stdout, limited to ASCII if ``plain`` or stdout cannot encode "█░╳"."""
    from gputile.tools.views.gpu_bars import Canvas

    try:
        # ``sys.stdout`` is None if the process was started with a closed stdout.
        "█░╳".encode(sys.stdout.encoding if sys.stdout is not None else "ascii")
    except UnicodeEncodeError:
        plain = True
    return Canvas(columns() or COLUMNS_OF_A_PIPE, coloured(sys.stdout), plain)


def write_table(rows: Sequence[Sequence[str]], most: int | None = None) -> int:
    """Print a table no wider than the terminal. Return the number of omitted rows.

    If ``most`` is not None, at most ``most`` lines are printed, and each row is shortened to one
    line. Otherwise all rows are printed.
    """
    width = columns()
    if most is None:
        text = aligned(rows, width)
    else:
        text = [
            shortened(line, width or COLUMNS_OF_A_PIPE) for line in aligned(rows)[: max(1, most)]
        ]
    write("".join(f"{line}\n" for line in text))
    return len(rows) - len(text) if most is not None else 0


def note_line(message: str) -> None:
    width = columns()
    text = " ".join(inert(message).split())
    note(text if width is None else shortened(text, width - len(_NOTE)))


def lines_of_note(message: str) -> int:
    """Return the number of terminal lines that ``note(message)`` fills."""
    width = columns()
    return 1 if width is None else -(-(len(_NOTE) + columns_of(inert(message))) // width)


def write_text(text: str, bullet: str = "") -> None:
    """Print ``bullet`` and ``text``, wrapped at the terminal's width with a hanging indent."""
    width, indent = columns(), " " * len(bullet)
    lines = wrapped(inert(text), width - len(bullet)) if width is not None else [inert(text)]
    write("".join(f"{indent if number else bullet}{line}\n" for number, line in enumerate(lines)))


def write_drawing(lines: Iterable["Line"], on: "Canvas") -> None:
    write(
        "".join(
            "".join(_coloured(span) if on.coloured else span.text for span in line).rstrip() + "\n"
            for line in lines
        )
    )


def _coloured(span: "Span") -> str:
    style = (
        _FAINT
        if span.faint
        else None
        if span.group is None
        else _COLOURS[span.group % len(_COLOURS)]
    )
    return span.text if style is None else f"\x1b[{style}m{span.text}\x1b[0m"


def bars(nodes: "Sequence[NodeSummary]", pods: "Iterable[Pod]") -> "list[NodeBars]":
    """Return the nodes with a bar for each GPU.

    Pods are grouped by namespace, or by workload if there is only one namespace.
    """
    from gputile.tools.simulator.outcomes import workload_name, workload_of
    from gputile.tools.views.gpu_bars import OTHER_PODS, node_bars

    if len({pod.namespace for node in nodes for pod in node.pods}) > 1:
        return node_bars(nodes, lambda pod: pod.namespace)
    names = {pod.key: workload_name(workload_of(pod)) for pod in pods}
    return node_bars(nodes, lambda pod: names.get(f"{pod.namespace}/{pod.name}", OTHER_PODS))


def draw(shown: "Sequence[NodeBars]", groups: "BarGroups", *, plain: bool) -> None:
    """Print the bars. ``groups`` defines the letter and the colour of each group of pods."""
    from gputile.tools.views.gpu_bars import draw as drawn

    on = canvas(plain=plain)
    write_drawing(drawn(shown, groups, on), on)


def write_remedies(changes: "Sequence[Remedy]") -> None:
    """Print the changes, each of which alone makes the pod fit. Print nothing if there are none."""
    if changes:
        write("It would fit if\n")
    for remedy in changes:
        where = f" (then on {', '.join(remedy.nodes)})" if remedy.nodes else ""
        write_text(f"{remedy.change}{where}", bullet="- ")


AFTER_S = 2.0
SAY_AFTER_PIPED_S = 8.0  # less than the ten seconds after which users suspect a hang
EVERY_S = 0.2
T = TypeVar("T")


class Progress:
    """A context manager that shows the progress of a long operation.

    On a terminal, a progress line appears after ``after`` seconds and is erased at the end. If
    stderr is not a terminal, one note is printed after ``piped`` seconds, or no note if ``piped``
    is None. ``total`` is the number of steps, or 0 if the number is unknown. A thread writes the
    line, so that the line appears even during one long step.
    """

    def __init__(
        self, what: str, total: int = 0, *, after: float = AFTER_S, piped: float | None = None
    ) -> None:
        self._what = inert(what)
        self._piped = piped
        self._total = total
        self._after = after
        self._done = 0
        self._ended = threading.Event()
        self._shown = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr is not None and (self._piped is not None or sys.stderr.isatty()):
            show = self._show if sys.stderr.isatty() else self._note
            self._thread = threading.Thread(target=show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._shown:
            _write("\r\x1b[K")

    def at(self, done: int) -> None:
        self._done = done

    def _note(self) -> None:
        if not self._ended.wait(self._piped):
            _write(f"note: {self._what}\n")

    def _show(self) -> None:
        started = time.monotonic()
        if self._ended.wait(self._after):
            return
        self._shown = True
        while True:
            count = f" {self._done}" if self._done or self._total else ""
            count += f" of {self._total}" if self._total else ""
            text = f"{self._what}{count} ... {time.monotonic() - started:.0f} s"
            _write("\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1])
            if self._ended.wait(EVERY_S):
                return


def with_progress(steps: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Yield ``steps``, and show the number of completed steps."""
    with Progress(what, total, piped=SAY_AFTER_PIPED_S) as progress:
        for number, step in enumerate(steps, 1):
            yield step
            progress.at(number)


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # raised if stderr is closed
        sys.stderr.write(text)
        sys.stderr.flush()
