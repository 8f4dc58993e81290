"""The picture of the terminal: what ``make demo`` prints, and nothing that a browser would load."""

import re

from docs.generator.screenshot import PICTURE, screenshot


def test_it_is_what_would_be_drawn_now() -> None:
    """``make docs`` draws it again."""
    assert PICTURE.read_text(encoding="utf-8") == screenshot()


def test_a_browser_loads_nothing_for_it() -> None:
    svg = PICTURE.read_text(encoding="utf-8")
    assert re.findall(r"https?://[^\"\s)]+", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@font-face|@import|<script|<image|href=", svg)
