"""The agent's ``/metrics``, ``/healthz`` and ``/readyz``, on a thread of their own: they answer when the loop hangs."""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

Problem = Callable[[], str]
"""Says what is wrong, "" if nothing is."""


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Probes are no news."""


def monitoring_app(registry: CollectorRegistry, sick: Problem, unready: Problem) -> "WSGIApplication":
    """Return the application. A probe fails with status 503 and what is wrong."""
    metrics, probes = make_wsgi_app(registry), {"/healthz": sick, "/readyz": unready}

    def app(environ: dict[str, Any], start: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            answer: Iterable[bytes] = metrics(environ, start)
            return answer
        if path not in probes:
            return _plain(start, "404 Not Found", "there are /metrics, /healthz and /readyz")
        problem = probes[path]()
        return _plain(start, "503 Service Unavailable" if problem else "200 OK", problem or "ok")

    return app


def start_monitoring(port: int, app: "WSGIApplication") -> WSGIServer:
    """Serve ``app`` on ``port`` until the server's ``shutdown``.

    Raises:
        OSError: the port cannot be had.
    """
    server = make_server("", port, app, handler_class=_QuietHandler)
    threading.Thread(target=server.serve_forever, name="monitoring", daemon=True).start()
    return server


def _plain(start: "StartResponse", status: str, text: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]
