"""Defines registries of metrics, and measures the lag of the event loop."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MEASURE_LAG_EVERY_S = 0.25
_LAG_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Values = Callable[[], Iterable[tuple[str, float]]]
"""A function that returns a number for each value of a label."""


class MetricsRegistry(CollectorRegistry):
    """The metrics of one component. The number of series must not grow with the cluster."""

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a gauge. ``value`` is called for each scrape."""
        Gauge(name, text, registry=self).set_function(value)

    def counter(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export the counter ``name``_total. ``value`` is called for each scrape."""
        self.register(_Computed(lambda: CounterMetricFamily(name, text), lambda: [((), value())]))

    def labelled(self, name: str, text: str, label: str, values: Values) -> None:
        """Export a gauge with one series per label value. ``values`` is called for each scrape."""
        self.register(
            _Computed(lambda: GaugeMetricFamily(name, text, labels=[label]), _of_one_label(values))
        )

    def labelled_counter(self, name: str, text: str, label: str, values: Values) -> None:
        """Export the counter ``name``_total with one series per label value."""
        self.register(
            _Computed(
                lambda: CounterMetricFamily(name, text, labels=[label]), _of_one_label(values)
            )
        )


class _Computed(Collector):
    """A metric that is computed for each scrape. Each series has label values and a number."""

    def __init__(
        self,
        family: Callable[[], GaugeMetricFamily | CounterMetricFamily],
        values: Callable[[], Iterable[tuple[Sequence[str], float]]],
    ) -> None:
        self._family, self._values = family, values

    def describe(self) -> Iterator[Metric]:
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        for labels, number in self._values():
            family.add_metric(labels, number)
        yield family


def _of_one_label(values: Values) -> Callable[[], Iterable[tuple[Sequence[str], float]]]:
    return lambda: (([label], number) for label, number in values())


class LoopLag:
    """Measures the delay of timers in the event loop, as a histogram in seconds.

    ``run`` takes the measurements. The caller registers ``seconds`` with the component's metrics.
    """

    def __init__(self, component: str, *, every: float = MEASURE_LAG_EVERY_S) -> None:
        self._every = every
        self.seconds = Histogram(
            f"gputile_{component}_event_loop_lag_seconds",
            "Delay of timers of the event loop, seconds. Above 0.05, a task blocks all others.",
            buckets=_LAG_BUCKETS,
            registry=None,
        )

    async def run(self) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._every
            await asyncio.sleep(self._every)
            self.seconds.observe(max(0.0, loop.time() - due))
