"""The metrics' names and types keep Prometheus' conventions."""

import re

import pytest
from docs.generator.metrics import entries

pytestmark = pytest.mark.requirement("B7")


def test_what_is_counted_since_a_start_is_a_counter() -> None:
    for entry in entries():
        counts = entry.name.endswith("_total")
        assert (entry.type == "counter") == counts, entry.name
        assert counts or not re.search(r"\bsince the (agent's )?start\b", entry.help), entry.name


def test_no_metric_has_the_family_of_another() -> None:
    """OpenMetrics names a counter's family without ``_total``."""
    families = [entry.name.removesuffix("_total") for entry in entries()]
    assert len(set(families)) == len(families)
