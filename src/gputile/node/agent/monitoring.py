"""Serves the agent's metrics and probes on threads that answer even if the event loop hangs."""

import contextlib
import socket
import socketserver
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from gputile.support.listening import bind_port

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

OPTION = "--health-port"
SILENT_FOR_S = 5.0
AT_ONCE = 64  # connections, with one thread each

NodeProblem = Callable[[], str | None]
"""Returns what is wrong, None if nothing is."""


class _Handler(WSGIRequestHandler):
    timeout = SILENT_FOR_S  # disconnects idle clients

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


class _MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves each client on its own thread, so that none of them delays the kubelet's probes."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        self._open: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        super().__init__(("", port), _Handler)

    def server_bind(self) -> None:
        """Bind all addresses of both families, without the base class's DNS lookup of the host."""
        self.socket.close()
        self.socket = bind_port(OPTION, "", self.server_address[1])
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on another thread; if there are too many, close the oldest connection."""
        with self._lock:
            self._open.append(request)
            surplus = self._open.popleft() if len(self._open) > AT_ONCE else None
        if surplus is not None:
            with contextlib.suppress(OSError):  # the client has closed it already
                surplus.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request, and stop counting its connection."""
        super().process_request_thread(request, client_address)
        with self._lock, contextlib.suppress(ValueError):
            self._open.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect or time out."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def monitoring_app(
    registry: CollectorRegistry, not_healthy: NodeProblem, not_ready: NodeProblem
) -> "WSGIApplication":
    """Return the WSGI application. A failed probe has status 503, and the problem as its text."""
    metrics, probes = make_wsgi_app(registry), {"/healthz": not_healthy, "/readyz": not_ready}

    def app(environ: dict[str, Any], start: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            answer: Iterable[bytes] = metrics(environ, start)
            return answer
        if path not in probes:
            return _plain(start, "404 Not Found", "there are /metrics, /healthz and /readyz")
        problem = probes[path]()
        if problem is None:
            return _plain(start, "200 OK", "ok")
        return _plain(start, "503 Service Unavailable", problem)

    return app


def start_monitoring(port: int, app: "WSGIApplication") -> WSGIServer:
    """Serve ``app`` on ``port`` until the server's ``shutdown``.

    Raises:
        PortError: the port cannot be opened.
    """
    server = _MetricsServer(port)
    server.set_app(app)
    threading.Thread(target=server.serve_forever, name="monitoring", daemon=True).start()
    return server


def _plain(start: "StartResponse", status: str, text: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]
