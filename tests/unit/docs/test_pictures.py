"""The pictures are what their script draws, and the glossary keeps to its own rules."""

import re
from xml.etree import ElementTree

import pytest
from docs.generator.pages import DOCS
from docs.generator.pictures import PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    """``make docs`` draws them again; that of the cluster shows what ``gputile simulate`` decides."""
    drawn = PICTURES[name]()
    assert (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8") == drawn
    ElementTree.fromstring(drawn)


def test_the_glossary_has_at_most_40_words_of_one_sentence_each() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w ]+) \| (.+) \|$", text, re.MULTILINE)[1:]
    assert 20 < len(rows) <= 40
    assert [word for word, _ in rows] == sorted((word for word, _ in rows), key=str.lower)
    assert [word for word, meaning in rows if not re.fullmatch(r"[^.]+(?:\.\w[^.]*)*\.", meaning)] == []
