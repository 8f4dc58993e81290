"""The extender's own metrics: a fixed number of series, whatever the size of the cluster."""

from prometheus_client import Counter, Histogram

from gputile.support.metrics import MetricsRegistry

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class ExtenderMetrics:
    """Counters of one extender."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.requests = Counter(
            "gputile_extender_requests_total",
            "Calls of kube-scheduler, by verb and outcome.",
            ["verb", "outcome"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "gputile_extender_request_seconds",
            "Time to answer kube-scheduler, seconds.",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
