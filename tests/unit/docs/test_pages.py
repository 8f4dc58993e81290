"""The generated blocks of the documentation are what the code says."""

import re
import tomllib

from docs.generator import commands, configuration, metrics, names
from docs.generator.pages import BLOCKS, DOCS, outdated, pages
from docs.generator.screenshot import PICTURE, screenshot


def test_every_page_is_what_the_code_says() -> None:
    """``make docs`` brings them up to date."""
    assert outdated() == []


def test_every_block_is_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in pages())
    assert [name for name in BLOCKS if f"<!-- generated: {name} -->" not in text] == []


def test_what_is_generated_has_a_meaning() -> None:
    assert names.unread() == []
    assert [path for path, *_, text in configuration.fields() if not text] == []
    assert [entry.name for entry in metrics.entries() if not entry.help or "{" in entry.help] == []


def test_every_metric_of_the_code_was_found() -> None:
    """Each component exports some; what is no call with a constant name would be missing."""
    assert {entry.component for entry in metrics.entries()} == {"agent", "controller", "extender", "webhook"}
    assert "gputile simulate" in commands.names()


def test_how_to_install_the_command_line_names_every_program() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (DOCS / "guides" / "install.md").read_text(encoding="utf-8")
    section = page.split("## The command line on a workstation\n")[1].split("\n## ")[0]
    assert [program for program in project["scripts"] if program not in section] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert [
        str(p.relative_to(DOCS)) for p in sorted(DOCS.rglob("*.md")) if str(p.relative_to(DOCS)) not in navigation
    ] == []


def test_the_glossary_has_at_most_40_words_of_one_sentence_each() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w ]+) \| (.+) \|$", text, re.MULTILINE)[1:]
    assert 20 < len(rows) <= 40
    assert [word for word, _ in rows] == sorted((word for word, _ in rows), key=str.lower)
    assert [word for word, meaning in rows if not re.fullmatch(r"[^.]+(?:\.\w[^.]*)*\.", meaning)] == []


def test_the_picture_of_the_demo_is_what_would_be_drawn_now_and_loads_nothing() -> None:
    svg = PICTURE.read_text(encoding="utf-8")
    assert svg == screenshot()
    assert re.findall(r"https?://[^\"\s)]+", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@font-face|@import|<script|<image|href=", svg)
