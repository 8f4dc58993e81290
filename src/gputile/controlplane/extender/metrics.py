"""Defines the extender's own metrics: a fixed number of series, whatever the size of the cluster."""

from datetime import datetime

from prometheus_client import Counter, Histogram

from gputile.api.core import Pod
from gputile.support.metrics import MetricsRegistry

_WAIT_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
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
        self._wait = Histogram(
            "gputile_extender_pod_wait_seconds",
            "Time from a GPU pod's creation to its Binding, seconds.",
            buckets=_WAIT_SECONDS,
            registry=self.registry,
        )

    def waited(self, pod: Pod, now: datetime) -> None:
        """Take note that a pod has been bound ``now``; its creation is a time of the API server's clock."""
        try:
            created = datetime.fromisoformat(pod.metadata.creation_timestamp or "")
            self._wait.observe(max(0.0, (now - created).total_seconds()))
        except (ValueError, TypeError):  # none, or one without a time zone: the API server writes neither
            return
