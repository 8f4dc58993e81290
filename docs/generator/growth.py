"""The figures of ``python -m benchmarks.growth``, as a table and as a picture with logarithmic axes."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from docs.generator.drawing import Drawing
from docs.generator.tables import table

_FIGURES: Final = Path(__file__).with_name("growth.json")
# Each at least 3 to 1 on white and on the dark page.
_COLOURS: Final = (
    "#2a78c2",
    "#c2591c",
    "#0f8a78",
    "#a04fc0",
    "#8a7400",
    "#cf3f6b",
    "#4c8a2b",
    "#6a6ae0",
    "#7a8798",
    "#b0603a",
    "#3a8a9a",
)
_LEFT, _TOP, _WIDTH, _HEIGHT, _GAP, _LABELS = 62, 40, 250, 400, 52, 270


@dataclass(frozen=True, slots=True)
class Growth:
    """What costs how many ``milliseconds`` of CPU at which of ``sizes``, and the exponent of the last tenfold."""

    what: str
    of: str
    sizes: tuple[int, ...]
    milliseconds: tuple[float, ...]
    exponent: float


def figures() -> list[Growth]:
    """Return what was measured last."""
    read = json.loads(_FIGURES.read_text(encoding="utf-8"))
    return [
        Growth(each["what"], each["of"], tuple(each["sizes"]), tuple(each["milliseconds"]), each["exponent"])
        for each in read
    ]


def render() -> str:
    """Return the figures as tables, one for each unit of the sizes."""
    found = figures()
    parts = []
    for of in dict.fromkeys(each.of for each in found):
        curves = [each for each in found if each.of == of]
        sizes = [f"{size:,}" for size in curves[0].sizes]
        rows = [[each.what, *(_told(value) for value in each.milliseconds), f"{each.exponent:.2f}"] for each in curves]
        parts.append(table([f"CPU time, by {of}", *sizes, "exponent"], rows))
    return "\n\n".join(parts)


def _told(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.2g} s" if milliseconds >= 1e3 else f"{float(f'{milliseconds:.2g}'):g} ms"


def growth() -> str:
    """Draw the curves: those against nodes at the left, those against the pods of a gang at the right."""
    found = figures()
    drawing = Drawing(1000, _TOP + _HEIGHT + 60, "CPU time of each decision against the size of the cluster")
    top = math.ceil(math.log10(max(max(each.milliseconds) for each in found)))
    bottom = math.floor(math.log10(min(min(each.milliseconds) for each in found)))
    colours = {each.what: colour for each, colour in zip(found, _COLOURS, strict=True)}
    left = _LEFT
    for of, width in (("nodes", _WIDTH), ("pods of the gang", 150)):
        panel = _Panel(drawing, [each for each in found if each.of == of], left, width, bottom, top)
        panel.draw(of, colours)
        left += width + _LABELS + _GAP
    return drawing.svg()


class _Panel:
    """One pair of axes: sizes from left to right, and milliseconds from 10**bottom up to 10**top."""

    def __init__(
        self, drawing: Drawing, curves: Sequence[Growth], left: int, width: int, bottom: int, top: int
    ) -> None:
        self._drawing, self._curves, self._left, self._width = drawing, curves, left, width
        self._bottom, self._top = bottom, top
        self._first, self._last = math.log10(curves[0].sizes[0]), math.log10(curves[0].sizes[-1])

    def draw(self, of: str, colours: dict[str, str]) -> None:
        right = self._left + self._width
        for power in range(self._bottom, self._top + 1):
            y = self._y(10.0**power)
            self._drawing.rule((self._left, y), (right, y))
            self._drawing.words(self._left - 8, y + 4, _power(power), at="end")
        for size in self._curves[0].sizes:
            self._drawing.words(self._x(size), _TOP + _HEIGHT + 18, f"{size:,}", at="middle")
        self._drawing.words(self._left + self._width / 2, _TOP + _HEIGHT + 40, of, at="middle")
        self._drawing.words(self._left - 40, _TOP - 18, "CPU time (exponent of the last tenfold)")
        lowest = math.inf
        for curve in sorted(self._curves, key=lambda each: each.milliseconds[-1]):
            points = [
                (self._x(size), self._y(value)) for size, value in zip(curve.sizes, curve.milliseconds, strict=True)
            ]
            colour = colours[curve.what]
            self._drawing.line(points, colour)
            lowest = min(points[-1][1] + 4, lowest - 16)
            self._drawing.words(right + 8, lowest, f"{curve.what} ({curve.exponent:.2f})", ink=colour)

    def _x(self, size: float) -> float:
        return self._left + self._width * (math.log10(size) - self._first) / (self._last - self._first)

    def _y(self, milliseconds: float) -> float:
        return _TOP + _HEIGHT * (self._top - math.log10(milliseconds)) / (self._top - self._bottom)


def _power(power: int) -> str:
    return f"{10 ** (power - 3):g} s" if power >= 3 else f"{10.0**power:g} ms"
