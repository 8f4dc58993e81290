"""Schedules that an API server takes, and whose day never comes."""

import pytest

from gputile.tools.simulator.rules.values.cron_schedule import broken_schedule, never_comes

pytestmark = pytest.mark.requirement("B4")


@pytest.mark.parametrize(
    ("schedule", "never"),
    [
        ("0 0 30 2 *", True),
        ("0 0 31 feb,4,jun,9,11 ?", True),
        ("0 0 30-31 2/11 *", True),
        ("0 0 30/1 2 */1", True),
        ("0 0 29 2 *", False),
        ("0 0 29-31 2 *", False),
        ("0 0 31 2-3 *", False),
        ("0 0 31 2/1 *", False),
        ("0 0 31 */11 *", False),
        ("0 0 30 2 mon", False),
        ("0 0 30 2 */2", False),
        ("0 0 *,31 2 *", False),
        ("0 0 ? 2 *", False),
        ("0 0 */30 2 *", False),
        ("@hourly", False),
    ],
)
def test_days_that_no_month_has(schedule: str, never: bool) -> None:
    assert broken_schedule(schedule) is None
    assert never_comes(schedule) is never
