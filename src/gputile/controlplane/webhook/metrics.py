"""The webhook's own metrics: a fixed number of series."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class WebhookMetrics:
    """Counters of one replica."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reviews = Counter(
            "gputile_webhook_reviews_total", "Reviews by webhook and outcome.", ["webhook", "outcome"],
            registry=self.registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "gputile_webhook_review_seconds",
            "Time to answer a review, seconds.",
            ["webhook"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.refusals = Counter(
            "gputile_webhook_refusals_total",
            "Rules that refused pods broke, by name.",
            ["rule"],
            registry=self.registry,
        )

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a number that is computed when it is read."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def render(self) -> bytes:
        """Return the text exposition format."""
        return generate_latest(self.registry)
