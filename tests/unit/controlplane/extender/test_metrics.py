"""How long pods wait for their Binding, as the extender counts it."""

from datetime import UTC, datetime

import pytest
from prometheus_client import generate_latest

from gputile.controlplane.extender.metrics import ExtenderMetrics
from tests.corebuilders import pod

pytestmark = pytest.mark.requirement("B7")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("created", "count", "total"),
    [
        ("2026-01-02T03:04:00Z", 1, 5),
        ("2026-01-02T03:04:09Z", 1, 0),  # the API server's clock is ahead
        (None, 0, 0),
        ("nonsense", 0, 0),
        ("2026-01-02T03:04:00", 0, 0),
    ],
)
def test_a_bound_pods_wait_is_counted(created: str | None, count: int, total: int) -> None:
    metrics, bound = ExtenderMetrics(), pod("a", mem=1)
    bound.metadata.creation_timestamp = created
    metrics.waited(bound, NOW)
    text = generate_latest(metrics.registry).decode()
    assert f"gputile_extender_pod_wait_seconds_count {count}.0" in text
    assert f"gputile_extender_pod_wait_seconds_sum {total}.0" in text
