"""Speaks HTTP/1.1 for the services, with bounds on what a client may send before it is judged.

uvicorn and its parser keep the whole of a request's head, its trailers, and requests that are sent ahead, whatever
their size; bodies are bounded where they are read. The clients here, API servers, kube-scheduler, kubelets and
Prometheus, stay far below these bounds.
"""

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES: Final = 64 * 1024  # of a request's line and headers, its trailers, or the extensions of a chunk
MOST_HEADERS: Final = 128
MOST_AHEAD: Final = 8  # requests sent before the answer to an earlier one on the same connection


class TooMuchError(Exception):
    """The client has sent more than a request may have; the parser hands it on, and the connection is closed."""


class BoundedProtocol(HttpToolsProtocol):
    """Answers 400 to a request that is out of bounds, and closes its connection."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._unread = 0  # bytes of a head, or of what follows a body, that have come so far
        self._headers = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and leave no timer: uvicorn's, where the client has reset the connection, would keep its buffers."""
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and close where a head does not end."""
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """Begin to count anew."""
        self._headers = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer.

        Raises:
            TooMuchError: there are too many.
        """
        self._headers += 1
        if self._headers > MOST_HEADERS:
            raise TooMuchError(f"more than {MOST_HEADERS} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin with the request, or let it wait for the answers to earlier ones.

        Raises:
            TooMuchError: too many wait.
        """
        self._unread = 0
        if len(self.pipeline) >= MOST_AHEAD:
            raise TooMuchError(f"more than {MOST_AHEAD} requests ahead")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand on a part of the body."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request."""
        self._unread = 0
        super().on_message_complete()
