"""Metrics that are computed when they are read, with and without a label."""

from prometheus_client import generate_latest

from gputile.support.metrics import MetricsRegistry


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
