"""Draws GPUs as bars on a terminal. A bar shows the share of each namespace or workload."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase
from typing import Final

from gputile.api.wording import gib_text, memory_text
from gputile.tools.views.inspect import NodeSummary, PodSummary
from gputile.tools.views.terminal_text import columns_of, inert, padded, wrapped

OTHERS: Final = "others"  # all groups that have no letter of their own
OTHER_PODS: Final = "other pods"  # pods on a GPU that are not listed
_LETTERS: Final = ascii_uppercase + ascii_lowercase
_OTHERS_LETTER: Final = "*"
_GAP: Final = 2
_NARROWEST, _WIDEST = 8, 24  # columns of a bar

GroupOf = Callable[[PodSummary], str]


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a line. ``group`` is the number of the group that the part shows, or None."""

    text: str
    group: int | None = None
    faint: bool = False


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Canvas:
    """The terminal: its columns, whether it has colours, and whether it is limited to ASCII."""

    columns: int
    coloured: bool = False
    ascii_only: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of a GPU. ``pieces`` maps groups to their shares of ``total``.

    Amounts are in MiB. If ``in_turns`` is true, the GPU is time-sliced and amounts are time slices.
    """

    index: int
    pieces: dict[str, int]
    used: int
    total: int
    healthy: bool = True
    in_turns: bool = False

    @property
    def amounts(self) -> str:
        if self.in_turns:
            return f"{self.used}/{self.total}"
        return f"{gib_text(self.used)}/{gib_text(self.total)}"


@dataclass(frozen=True, slots=True)
class NodeBars:
    """The bars of a node's GPUs. ``remarks`` are sentences on facts that the bars do not show."""

    name: str
    bars: list[Bar]
    remarks: list[str]


class BarGroups:
    """Assigns letters and colours to groups of pods, in the order of the groups' names.

    ``known`` maps groups to their amounts. If there are more groups than letters, only the largest
    groups get letters. An asterisk marks all others.
    """

    def __init__(self, known: Counter[str]) -> None:
        largest = sorted(known, key=lambda name: (-known[name], name))[: len(_LETTERS)]
        self.names = sorted(largest)
        self._numbers = {name: number for number, name in enumerate(self.names)}

    def number(self, name: str) -> int:
        return self._numbers.get(name, len(self.names))

    def letter(self, number: int) -> str:
        return _LETTERS[number] if number < len(self.names) else _OTHERS_LETTER


def groups_of(nodes: Collection[NodeBars]) -> BarGroups:
    known: Counter[str] = Counter()
    for node in nodes:
        for bar in node.bars:
            known.update(bar.pieces)
    return BarGroups(known)


def node_bars(nodes: Sequence[NodeSummary], group_of: GroupOf) -> list[NodeBars]:
    """Return a bar for each GPU of the nodes. ``group_of`` returns the group of a pod."""
    return [NodeBars(node.name, _bars(node, group_of), _remarks(node)) for node in nodes]


def draw(nodes: Sequence[NodeBars], groups: BarGroups, canvas: Canvas) -> list[Line]:
    """Return the lines of the drawing. The terminal must have at least 40 columns."""
    if not any(node.bars for node in nodes):
        remarks = [f"{node.name}: {remark}" for node in nodes for remark in node.remarks]
        texts = [text for each in remarks for text in wrapped(inert(each), canvas.columns)]
        return [(Span(text),) for text in ("No node has GPUs.", *texts)]
    names = [columns_of(inert(node.name)) for node in nodes]
    name_width = max((width for width in names if width <= canvas.columns // 4), default=_GAP)
    name_width = max(name_width, len("NODE"))
    grid = _grid(nodes, canvas.columns - name_width - _GAP, canvas)
    lines: list[Line] = [
        (Span(padded("NODE", name_width + _GAP) + "GPU MEMORY (GiB, used/total)"),)
    ]
    for node in nodes:
        rows = [node.bars[at : at + grid.in_row] for at in range(0, len(node.bars), grid.in_row)]
        drawn = [_row(row, grid, groups, canvas) for row in rows]
        lines += _named_rows(inert(node.name), drawn, name_width, canvas)
        lines += [
            (Span(" " * (name_width + _GAP) + text),)
            for remark in node.remarks
            for text in wrapped(inert(remark), canvas.columns - name_width - _GAP)
        ]
    shown = {span.group for line in lines for span in line if span.group is not None}
    has_unhealthy = any(not bar.healthy for node in nodes for bar in node.bars)
    return [*lines, (), *_legend(groups, canvas, shown, has_unhealthy=has_unhealthy)]


def _bars(node: NodeSummary, group_of: GroupOf) -> list[Bar]:
    bars, in_turns = [], node.replicas > 0
    for gpu in node.gpus:
        pieces: Counter[str] = Counter()
        for pod in node.pods:
            if mib := pod.mib.get(gpu.index):
                pieces[group_of(pod)] += pod.slices[gpu.index] if in_turns else mib
        used = gpu.pods if in_turns else gpu.booked_mib
        if (rest := used - sum(pieces.values())) > 0:
            pieces[OTHER_PODS] += rest
        bars.append(
            Bar(
                gpu.index, dict(pieces), used, node.replicas or gpu.total_mib, gpu.healthy, in_turns
            )
        )
    return bars


def _remarks(node: NodeSummary) -> list[str]:
    found = list(node.troubles)
    if node.replicas:
        found.append("time-sliced: counted in time slices")
    if unplaced := node.unplaced_mib:
        found.append(f"in addition, {memory_text(unplaced)} of pods whose GPUs are unknown")
    return found


@dataclass(frozen=True, slots=True)
class _Grid:
    """The layout: the number of bars per row, and the widths of a GPU's index, bar and amounts."""

    in_row: int
    index: int
    bar: int
    amounts: int


def _grid(nodes: Sequence[NodeBars], columns: int, canvas: Canvas) -> _Grid:
    """Return the layout with the fewest rows and with similar numbers of bars in the rows."""
    bars = [bar for node in nodes for bar in node.bars]
    index = max(len(str(bar.index)) for bar in bars)
    amounts = max(len(bar.amounts) for bar in bars)
    other_columns = index + amounts + 2 + (2 if canvas.ascii_only else 0)
    most = max(len(node.bars) for node in nodes)
    fitting = max(1, (columns + _GAP) // (other_columns + _NARROWEST + _GAP))
    in_row = math.ceil(most / math.ceil(most / fitting))
    bar = (columns + _GAP) // in_row - _GAP - other_columns
    return _Grid(in_row, index, max(2, min(bar, _WIDEST)), amounts)


def _row(bars: Sequence[Bar], grid: _Grid, groups: BarGroups, canvas: Canvas) -> Line:
    spans: list[Span] = []
    for number, bar in enumerate(bars):
        if number:
            spans.append(Span(" " * _GAP))
        spans.append(Span(f"{bar.index:>{grid.index}} "))
        spans += _bar(bar, grid.bar, groups, canvas)
        last = number == len(bars) - 1
        spans.append(Span(f" {bar.amounts}" if last else f" {bar.amounts:<{grid.amounts}}"))
    return tuple(spans)


def _bar(bar: Bar, width: int, groups: BarGroups, canvas: Canvas) -> list[Span]:
    numbered: Counter[int] = Counter()
    for name, amount in bar.pieces.items():
        numbered[groups.number(name)] += amount
    pieces = _merged(numbered, width - 1, groups)
    free = max(0, bar.total - sum(pieces.values()))
    *cells, empty = _cells([*pieces.values(), free], width)
    spans = [
        Span(_filled(groups.letter(g), size, canvas), g)
        for g, size in zip(pieces, cells, strict=True)
    ]
    if empty:
        spans.append(
            Span((_free(canvas) if bar.healthy else _unhealthy(canvas)) * empty, faint=True)
        )
    return [Span("["), *spans, Span("]")] if canvas.ascii_only else spans


def _free(canvas: Canvas) -> str:
    return "." if canvas.ascii_only else "░"


def _unhealthy(canvas: Canvas) -> str:
    return "x" if canvas.ascii_only else "╳"


def _merged(pieces: Counter[int], most: int, groups: BarGroups) -> dict[int, int]:
    """Return at most ``most`` pieces by group number. The smallest are merged into ``OTHERS``."""
    largest = dict(pieces.most_common() if len(pieces) <= most else pieces.most_common(most - 1))
    found = {number: largest[number] for number in sorted(largest)}
    if rest := sum(pieces.values()) - sum(largest.values()):
        others = len(groups.names)
        found[others] = found.get(others, 0) + rest
    return found


def _filled(letter: str, size: int, canvas: Canvas) -> str:
    """Return the text of a piece of a bar, which begins with the letter of its group."""
    return letter + (letter if canvas.ascii_only else " " if canvas.coloured else "█") * (size - 1)


def _cells(parts: Sequence[int], width: int) -> list[int]:
    """Divide ``width`` cells among the parts by size. Each part above 0 gets at least one cell."""
    total = sum(parts)
    if not total:
        return [0] * (len(parts) - 1) + [width]
    exact = [width * part / total for part in parts]
    cells = [max(1, int(each)) if part else 0 for part, each in zip(parts, exact, strict=True)]
    while sum(cells) > width:
        spare = [at for at, size in enumerate(cells) if size > 1]
        cells[max(spare, key=lambda at: cells[at] - exact[at])] -= 1
    while sum(cells) < width:
        cells[max(range(len(cells)), key=lambda at: exact[at] - cells[at])] += 1
    return cells


def _named_rows(name: str, drawn: Sequence[Line], name_width: int, canvas: Canvas) -> list[Line]:
    """Return rows that begin with the node's name. A long name is on lines of its own."""
    indent = Span(" " * (name_width + _GAP))
    if columns_of(name) > name_width:
        return [
            *((Span(text),) for text in wrapped(name, canvas.columns)),
            *((indent, *line) for line in drawn),
        ]
    first = Span(padded(name, name_width + _GAP))
    return [((indent if number else first), *line) for number, line in enumerate(drawn or [()])]


def _legend(
    groups: BarGroups, canvas: Canvas, shown: Collection[int], *, has_unhealthy: bool
) -> list[Line]:
    """Return the legend for the groups in ``shown``, for free memory and for unhealthy GPUs."""
    named = [*map(inert, groups.names), OTHERS]
    entries = [(Span(groups.letter(number), number), named[number]) for number in sorted(shown)]
    entries.append((Span(_free(canvas), faint=True), "free"))
    if has_unhealthy:
        entries.append((Span(_unhealthy(canvas), faint=True), "unhealthy"))
    lines: list[Line] = []
    used = 0
    for letter, name in entries:
        first, *more = wrapped(name, canvas.columns - 2)
        size = 2 + columns_of(first)
        if lines and not more and used + _GAP + size <= canvas.columns:
            lines[-1] = (*lines[-1], Span(" " * _GAP), letter, Span(f" {first}"))
            used += _GAP + size
        else:
            lines += [(letter, Span(f" {first}")), *((Span(f"  {text}"),) for text in more)]
            used = canvas.columns if more else size
    return lines
