"""Boxes, arrows and words as SVG, in colours that read well on light and on dark pages."""

from collections.abc import Sequence
from html import escape
from typing import Literal

INK = "#7a8798"  # what lies outside boxes: words and arrows; 3.7 to 1 on white, 4.4 to 1 on the dark page
FILLS = {
    "teal": ("#0f766e", "#ffffff"),
    "blue": ("#2563a8", "#ffffff"),
    "amber": ("#b45309", "#ffffff"),
    "violet": ("#6d4bb8", "#ffffff"),
    "grey": ("#56616f", "#ffffff"),
}
Anchor = Literal["start", "middle", "end"]
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


class Drawing:
    """A picture of some width and height, in pixels; ``title`` is what a reader hears who cannot see it."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="{_FONT}" font-size="14">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="11" markerHeight="11" '
            'markerUnits="userSpaceOnUse" '
            f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>',
        ]

    def box(self, x: int, y: int, width: int, height: int, text: str, fill: str = "teal") -> None:
        """Draw a filled box with lines of text in its middle; the first line is bold."""
        back, ink = FILLS[fill]
        self._parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{back}"/>')
        lines = text.split("\n")
        top = y + height / 2 - (len(lines) - 1) * 9 + 5
        for number, line in enumerate(lines):
            weight = ' font-weight="600"' if number == 0 else ' font-size="12"'
            self._parts.append(
                f'<text x="{x + width / 2:g}" y="{top + 18 * number:g}" text-anchor="middle" fill="{ink}"{weight}>'
                f"{escape(line)}</text>"
            )

    def frame(self, x: int, y: int, width: int, height: int, text: str) -> None:
        """Draw a frame with a name at its upper left."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="none" stroke="{INK}" '
            'stroke-dasharray="5 4"/>'
        )
        self.words(x + 10, y + 19, text, bold=True)

    def words(self, x: float, y: float, text: str, *, at: Anchor = "start", bold: bool = False, ink: str = INK) -> None:
        """Write a line outside of boxes, whose start, middle or end is at ``x``."""
        anchor = "" if at == "start" else f' text-anchor="{at}"'
        weight = ' font-weight="600"' if bold else ' font-size="12"'
        self._parts.append(f'<text x="{x:g}" y="{y:g}" fill="{ink}"{anchor}{weight}>{escape(text)}</text>')

    def line(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """Draw a line along points, each of them a dot."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        self._parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]

    def rule(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw a faint line for the eye to follow."""
        (x1, y1), (x2, y2) = start, end
        self._parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{INK}" stroke-opacity="0.3"/>'
        )

    def arrow(self, *points: tuple[int, int], both: bool = False) -> None:
        """Draw an arrow along points, with a head at both ends if it goes forth and back."""
        line = " ".join(f"{x},{y}" for x, y in points)
        start = ' marker-start="url(#a)"' if both else ""
        self._parts.append(
            f'<polyline points="{line}" fill="none" stroke="{INK}" stroke-width="2" marker-end="url(#a)"{start}/>'
        )

    def svg(self) -> str:
        """Return the picture."""
        return "\n".join([*self._parts, "</svg>"]) + "\n"
