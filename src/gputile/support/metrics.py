"""Makes registries of metrics in one way for every component."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Values = Callable[[], Iterable[tuple[str, float]]]
"""Returns a number for each value of a label."""


class MetricsRegistry(CollectorRegistry):
    """The metrics of one component: a fixed number of series, whatever the size of the cluster."""

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a number that is computed when it is read."""
        Gauge(name, text, registry=self).set_function(value)

    def counter(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a count that somebody else keeps; ``_total`` is appended to the name."""
        self.register(_Computed(lambda: CounterMetricFamily(name, text), lambda: [((), value())]))

    def labelled(self, name: str, text: str, label: str, values: Values) -> None:
        """Export a number for each value of a label, computed when they are read."""
        self.register(_Computed(lambda: GaugeMetricFamily(name, text, labels=[label]), _of_one_label(values)))

    def labelled_counter(self, name: str, text: str, label: str, values: Values) -> None:
        """Export a count for each value of a label, which somebody else keeps; ``_total`` is appended to the name."""
        self.register(_Computed(lambda: CounterMetricFamily(name, text, labels=[label]), _of_one_label(values)))


class _Computed(Collector):
    """One metric, whose values are computed when they are read: numbers, each with the values of the labels."""

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
