"""The picture of the terminal: what ``make demo`` prints, and nothing that a browser would load."""

import re
from xml.etree import ElementTree

from docs.generator.screenshot import CUT, PICTURE, demo, screenshot
from rich.text import Text


def test_it_is_what_would_be_drawn_now() -> None:
    """``make docs`` draws it again."""
    assert PICTURE.read_text(encoding="utf-8") == screenshot()


def test_it_shows_what_the_demo_prints() -> None:
    """Line by line."""
    root = ElementTree.fromstring(PICTURE.read_text(encoding="utf-8"))
    rows: dict[float, list[tuple[float, str]]] = {}
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        if "clip-path" in text.attrib:
            rows.setdefault(float(text.attrib["y"]), []).append((float(text.attrib["x"]), text.text or ""))
    lines = [
        "".join(part for _, part in sorted(parts)).replace("\xa0", " ").split() for _, parts in sorted(rows.items())
    ]
    printed = Text.from_ansi(demo()).plain.splitlines()
    whole = {" ".join(line.split()) for line in printed} | {CUT}
    assert len(lines) > 15
    assert [line for line in lines if line and " ".join(line) not in whole] == []


def test_a_browser_loads_nothing_for_it() -> None:
    svg = PICTURE.read_text(encoding="utf-8")
    assert re.findall(r"https?://[^\"\s)]+", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@font-face|@import|<script|<image|href=", svg)
