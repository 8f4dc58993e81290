"""The controller's /healthz, /readyz and /metrics."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


class ControllerMetrics:
    """Numbers that are computed when they are read: a fixed number of series, whatever the size of the cluster."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a number."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def labelled(self, name: str, text: str, label: str, values: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """Export a number for each value of a label."""
        self.registry.register(_Labelled(name, text, label, values))


class _Labelled:
    def __init__(self, name: str, text: str, label: str, values: Callable[[], Iterable[tuple[str, float]]]) -> None:
        self._name, self._text, self._label, self._values = name, text, label, values

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._text, labels=[self._label])
        for value, number in self._values():
            family.add_metric([value], number)
        yield family


class Monitoring:
    """``app`` tells of the controller that was shown last: one server outlives a change of the configuration."""

    def __init__(self) -> None:
        self._metrics = ControllerMetrics()
        self._not_ready: Callable[[], str] = lambda: "it has not begun yet"
        routes = [("/healthz", self._healthz), ("/readyz", self._readyz), ("/metrics", self._exposition)]
        self.app = Starlette(routes=[Route(path, endpoint) for path, endpoint in routes])

    def show(self, describe: Callable[[ControllerMetrics], None], not_ready: Callable[[], str]) -> None:
        """Tell of another one; ``not_ready`` says why it is not ready, "" where it is."""
        metrics = ControllerMetrics()
        describe(metrics)
        self._metrics, self._not_ready = metrics, not_ready

    async def _healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok")

    async def _readyz(self, _: Request) -> Response:
        why = self._not_ready()
        return PlainTextResponse(why or "ok", 503 if why else 200)

    async def _exposition(self, _: Request) -> Response:
        text = generate_latest(self._metrics.registry)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
