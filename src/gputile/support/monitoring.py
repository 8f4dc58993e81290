"""Serves /healthz, /readyz and /metrics of the services that answer on their event loop."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

MONITORING_PATHS = ("/healthz", "/readyz", "/metrics")


def monitoring_routes(registry: CollectorRegistry, not_ready: Callable[[], str | None]) -> list[Route]:
    """Return the routes of a component; ``not_ready`` says why it is not ready, None where it is."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        why = not_ready()
        return PlainTextResponse("ok") if why is None else PlainTextResponse(why, 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    return [Route(path, each) for path, each in zip(MONITORING_PATHS, (healthz, readyz, metrics), strict=True)]


def monitoring_app(registry: CollectorRegistry, not_ready: Callable[[], str | None]) -> Starlette:
    """Return the ASGI application of a component that serves nothing else beside; see ``monitoring_routes``."""
    return Starlette(routes=monitoring_routes(registry, not_ready))
