"""Metrics that are computed when they are read, and the delay of an event loop."""

import asyncio
import contextlib
import time

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gputile.support.telemetry import LoopLag, MetricsRegistry


def test_what_is_exported_is_what_holds_when_it_is_read() -> None:
    registry, numbers = MetricsRegistry(), {"a": 1.0}
    registry.gauge("size", "How many.", lambda: len(numbers))
    registry.counter("gone", "How many have gone.", lambda: len(numbers) - 1)
    registry.labelled("number", "Each.", "name", numbers.items)
    registry.labelled_counter("seen", "Each.", "name", numbers.items)
    numbers["b"] = 2.0
    text = generate_latest(registry).decode()
    assert "size 2.0" in text
    assert "# TYPE gone_total counter\ngone_total 1.0" in text
    assert '# TYPE number gauge\nnumber{name="a"} 1.0\nnumber{name="b"} 2.0' in text
    assert '# TYPE seen_total counter\nseen_total{name="a"} 1.0\nseen_total{name="b"} 2.0' in text


@pytest.mark.anyio
async def test_a_handler_that_holds_the_loop_is_seen() -> None:
    lag, registry = LoopLag("x", every=0.01), CollectorRegistry()
    registry.register(lag.seconds)

    def value(series: str) -> float:
        found = registry.get_sample_value(f"gputile_x_event_loop_lag_seconds_{series}")
        assert found is not None
        return found

    task = asyncio.create_task(lag.run())
    while value("count") < 3:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
    before = value("sum")
    time.sleep(0.5)  # noqa: ASYNC251 - what a handler must not do
    await asyncio.sleep(0.05)
    assert value("sum") - before >= 0.45
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert b"gputile_x_event_loop_lag_seconds_bucket" in generate_latest(registry)
