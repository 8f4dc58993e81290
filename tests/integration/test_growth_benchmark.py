"""The benchmark of growth measures every curve, on small clusters here, and prints the tables of the documentation."""

import re

import pytest
from benchmarks import growth
from docs.generator.pages import DOCS


def test_every_curve_of_the_documentation_is_measured() -> None:
    said: list[str] = []
    found = list(growth.curves((10, 20), (2, 4), 20, told=said.append))
    assert said == ["10 nodes", "20 nodes", "gangs on 20 nodes"]
    assert all(seconds > 0 for each in found for seconds in each.seconds)
    page = (DOCS / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    section = page.partition("## Growth: `growth`")[2].partition("\n## ")[0]
    shown = [re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE) for text in (section, growth.tables(found))]
    assert shown[0] == shown[1], "make growth prints other curves"


def test_the_exponent_is_that_of_the_last_tenfold() -> None:
    assert growth.Curve("", "nodes", (1, 10, 100), (1.0, 1.0, 100.0)).exponent == pytest.approx(2)
    assert growth.Curve("", "nodes", (10, 32, 100, 316), (9.0, 1.0, 1.0, 10.0)).exponent == pytest.approx(1, rel=0.01)
    assert growth.Curve("", "nodes", (2, 4), (1.0, 2.0)).exponent == pytest.approx(1)
