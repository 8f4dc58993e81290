"""Defines the agent's metrics: durations of calls, corrections of the ledger, GPU time by container."""

from collections.abc import Iterator

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gputile.node.agent.time_shares import TimeUsed
from gputile.support.metrics import MetricsRegistry

_SECOND_DIGITS = 3  # nobody reads more, and more of each container are kilobytes of a scrape
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)


class GpuTimes(Collector):
    """The GPU time of the containers there are. ``rows`` is replaced as a whole: another thread reads it."""

    def __init__(self) -> None:
        self.rows: tuple[TimeUsed, ...] = ()

    def collect(self) -> Iterator[CounterMetricFamily]:
        used = CounterMetricFamily(
            "gputile_agent_gpu_time_seconds",
            "Time for which a container had the GPU in its turns, seconds",
            labels=("namespace", "pod", "container", "gpu"),
        )
        waited = CounterMetricFamily(
            "gputile_agent_gpu_wait_seconds",
            "Time for which a container with work for the GPU waited for its turns, seconds",
            labels=("namespace", "pod", "container", "gpu"),
        )
        for (_, *names), gpu, seconds, waiting in self.rows:
            used.add_metric((*names, gpu), round(seconds, _SECOND_DIGITS))
            waited.add_metric((*names, gpu), round(waiting, _SECOND_DIGITS))
        yield used
        yield waited


class AgentMetrics:
    """One agent's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.seconds = Histogram(
            "gputile_agent_call_seconds",
            "Time to answer a call of the kubelet, seconds",
            ("call",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.corrections = Counter(
            "gputile_agent_ledger_corrections",
            "Allocation annotations rewritten because the kubelet had given other GPUs",
            registry=self.registry,
        )
        self.placed = Counter(
            "gputile_agent_ledger_additions",
            "Allocation annotations written for pods that were bound without one",
            registry=self.registry,
        )
        self.contradictions = Counter(
            "gputile_agent_contradictions",
            "Calls of the kubelet that were refused, since a container would have had a GPU or an amount not its own",
            registry=self.registry,
        )
        self.unidentified = Counter(
            "gputile_agent_unidentified_admissions",
            "Allocate calls answered before their pod was known",
            registry=self.registry,
        )
        self.agents_started = 0
        self.registry.counter(
            "gputile_agent_agents_started",
            "Agents that the gateway has started, including this one",
            lambda: self.agents_started,
        )
        self.gpu_times = GpuTimes()
        self.registry.register(self.gpu_times)
        self.pods_with_devices = Gauge(
            "gputile_agent_pods", "Pods of this node that hold device IDs", registry=self.registry
        )
