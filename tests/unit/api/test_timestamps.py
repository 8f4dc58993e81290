"""Times as Kubernetes writes them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from gputile.api.timestamps import micro_timestamp_of, timestamp_of, unix_seconds

EASTERN = datetime(2026, 1, 2, 5, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2)))


def test_a_time_is_written_in_utc() -> None:
    assert timestamp_of(EASTERN) == "2026-01-02T03:04:05Z"
    assert micro_timestamp_of(EASTERN) == "2026-01-02T03:04:05.678901Z"


def test_what_is_written_is_read_as_the_same_moment() -> None:
    assert unix_seconds(micro_timestamp_of(EASTERN)) == EASTERN.timestamp()
    assert unix_seconds(timestamp_of(EASTERN)) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("text", [None, "", "yesterday", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_is_0(text: str | None) -> None:
    assert unix_seconds(text) == 0
