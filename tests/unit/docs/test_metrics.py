"""The metrics' names and types keep Prometheus' conventions, and those that go are told."""

import re

import pytest
from docs.generator.metrics import entries
from docs.generator.pages import DOCS

pytestmark = pytest.mark.requirement("B7")

_FORMER = re.compile(r"The former name of (\w+)\.?")


def former() -> dict[str, str]:
    """Return the names that go, each with the one beside it."""
    found = ((entry.name, _FORMER.fullmatch(entry.help)) for entry in entries())
    return {name: match[1] for name, match in found if match is not None}


def test_what_is_counted_since_a_start_is_a_counter() -> None:
    gone = former()
    for entry in entries():
        if entry.name not in gone:
            counts = entry.name.endswith("_total")
            assert (entry.type == "counter") == counts, entry.name
            assert counts or not re.search(r"\bsince the (agent's )?start\b", entry.help), entry.name


def test_no_metric_has_the_family_of_another() -> None:
    """OpenMetrics names a counter's family without ``_total``."""
    families = [entry.name.removesuffix("_total") for entry in entries()]
    assert len(set(families)) == len(families)


def test_a_former_name_stands_beside_a_better_one_and_on_the_page_of_versions() -> None:
    page = (DOCS / "reference" / "versions.md").read_text(encoding="utf-8")
    section = page.partition("## Metrics that go")[2].partition("\n## ")[0]
    told = dict(re.findall(r"^\| \w+ \| `(\w+)` \| `(\w+)` \|$", section, re.MULTILINE))
    assert told == former()
    assert set(told.values()) <= {entry.name for entry in entries()}
