"""Defines the webhook's own metrics: a fixed number of series."""

from prometheus_client import Counter, Histogram

from gputile.support.metrics import MetricsRegistry

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class WebhookMetrics:
    """Counters of one replica."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
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
