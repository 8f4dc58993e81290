"""The controller's /healthz, /readyz and /metrics."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import uvicorn
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


class Metrics:
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


def monitoring_app(metrics: Metrics, not_ready: Callable[[], str]) -> Starlette:
    """Return the application; ``not_ready`` says why the replica is not ready, "" where it is."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        why = not_ready()
        return PlainTextResponse(why or "ok", 503 if why else 200)

    async def exposition(_: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", exposition)])


class MonitoringServer(uvicorn.Server):
    """uvicorn without its own signal handlers: ours end more than the server."""

    def __init__(self, app: Starlette, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host="0.0.0.0",  # noqa: S104 - the kubelet asks at the pod's address
                port=port,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave SIGTERM and SIGINT alone."""
        yield

    def stop(self) -> None:
        """Return from ``serve``."""
        self.should_exit = True
