"""The agent's metrics: how long admissions take, and how often the kubelet and the ledger disagreed."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """One agent's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "gputile_agent_call_seconds",
            "Time to answer a call of the kubelet",
            ("call",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.corrections = Counter(
            "gputile_agent_ledger_corrections",
            "Allocation annotations rewritten because the kubelet had given other cards",
            registry=self.registry,
        )
        self.placed = Counter(
            "gputile_agent_ledger_additions",
            "Allocation annotations written for pods that were bound without one",
            registry=self.registry,
        )
        self.contradictions = Counter(
            "gputile_agent_contradictions",
            "Choices of the kubelet that could not be served",
            registry=self.registry,
        )
        self.unidentified = Counter(
            "gputile_agent_unidentified_admissions",
            "Allocations answered before it was known for which pod",
            registry=self.registry,
        )
        self.starts = Gauge(
            "gputile_agent_starts", "Agents that the gateway has started, this one included", registry=self.registry
        )
        self.holdings = Gauge("gputile_agent_pods", "Pods that hold devices", registry=self.registry)
