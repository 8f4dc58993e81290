"""Writes the generated blocks of the pages in docs/."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from docs.generator import (
    chart_values,
    commands,
    configuration,
    metrics,
    names,
    reasons,
    requirements,
    schemas,
)

DOCS = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(
    r"<!-- generated: (?P<name>[a-z-]+) -->\n.*?<!-- end of generated -->", re.DOTALL
)

BLOCKS: Mapping[str, Callable[[], str]] = {
    "chart-values": chart_values.render,
    "commands": commands.render,
    "condition-reasons": reasons.condition_reasons,
    "conditions": reasons.conditions,
    "configuration": configuration.render,
    "events": reasons.events,
    "exit-codes": reasons.exit_codes,
    "metrics": metrics.render,
    "requirements": requirements.render,
    "schemas": schemas.render,
    **{section: partial(names.render, section) for section in names.SECTIONS},
}


def pages() -> list[Path]:
    """Return the pages that have a generated block."""
    everywhere = [*sorted(DOCS.rglob("*.md")), chart_values.CHART / "README.md"]
    return [page for page in everywhere if _BLOCK.search(page.read_text(encoding="utf-8"))]


def written(page: Path) -> str:
    """Return the text that a page should have according to the code.

    Raises:
        KeyError: the page names a block that no generator writes.
    """

    def block(match: re.Match[str]) -> str:
        return (
            f"<!-- generated: {match['name']} -->\n{BLOCKS[match['name']]()}\n<!-- end of "
            f"generated -->"
        )

    return _BLOCK.sub(block, page.read_text(encoding="utf-8"))


def outdated() -> list[Path]:
    """Return the pages that differ from the code."""
    return [page for page in pages() if page.read_text(encoding="utf-8") != written(page)]


def rewrite(page: Path) -> None:
    """Update the generated blocks of a page."""
    page.write_text(written(page), encoding="utf-8")
