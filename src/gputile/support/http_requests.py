"""Routes HTTP requests to handlers, answers probes and scrapes, and reads bodies within limits.

A client must not lock out other clients with large or slow bodies. Each component therefore reads
the bodies of all its requests with one ``BodyReader``.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from gputile.api.quantity import MIB
from gputile.support.http_server import Handler

MOST_BODY_BYTES: Final = 64 * MIB  # of all bodies that a reader reads concurrently
BODY_SECONDS: Final = 5.0


def routed(routes: Mapping[str, tuple[str, Handler]]) -> Handler:
    """Return a handler that selects a route by the path. A GET route also answers HEAD requests."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        found = routes.get(request.path)
        if found is None:
            return web.Response(status=404, text="not found")
        method, handler = found
        if request.method == method or (request.method == "HEAD" and method == "GET"):
            return await handler(request)
        return web.Response(
            status=405, text=f"{request.path} allows {method} only", headers={"Allow": method}
        )

    return answer


def monitoring_routes(
    registry: CollectorRegistry, not_ready: Callable[[], str | None]
) -> dict[str, tuple[str, Handler]]:
    """Return routes for probes and metrics. ``not_ready`` returns None if the server is ready."""

    async def healthz(_: web.BaseRequest) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.BaseRequest) -> web.Response:
        why = not_ready()
        return web.Response(text="ok") if why is None else web.Response(status=503, text=why)

    async def metrics(_: web.BaseRequest) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=generate_latest(registry), headers=headers)

    return {"/healthz": ("GET", healthz), "/readyz": ("GET", readyz), "/metrics": ("GET", metrics)}


class BodyRefused(Exception):
    """A body was not read to its end. ``status`` is the HTTP status of the response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class BodyReader:
    """Limits the memory of all bodies that are being read.

    If the bodies together exceed ``most`` bytes, the largest bodies are aborted. So large, slow
    bodies cannot lock out small bodies. One body may have at most ``largest`` bytes, and must
    arrive within ``seconds``.
    """

    def __init__(
        self, largest: int, *, most: int = MOST_BODY_BYTES, seconds: float = BODY_SECONDS
    ) -> None:
        self._largest = largest
        self._most = most
        self._seconds = seconds
        self._sizes: dict[asyncio.Timeout, int] = {}  # bytes of each body, by its timeout
        self._aborted: set[asyncio.Timeout] = set()
        self.total = 0  # bytes

    async def body(self, request: web.BaseRequest) -> bytes:
        """Return the body.

        Raises:
            BodyRefused: the body is too large or too slow, all bodies together are too large, or
                the client disconnected.
        """
        parts: list[bytes] = []
        limit = asyncio.timeout(self._seconds)
        self._sizes[limit] = 0
        try:
            async with limit:
                async for part in request.content.iter_any():
                    self._sizes[limit] += len(part)
                    self.total += len(part)
                    if self._sizes[limit] > self._largest:
                        raise BodyRefused(413, f"the body has more than {self._largest} bytes")
                    if self.total > self._most:
                        self._abort_largest()
                    if limit in self._aborted:
                        raise TimeoutError
                    parts.append(part)
        except TimeoutError:
            if limit in self._aborted:
                raise BodyRefused(
                    503, "too many large requests at the same time; try again"
                ) from None
            raise BodyRefused(
                408, f"the body was not received within {self._seconds:g} s"
            ) from None
        except (OSError, web.RequestPayloadError) as error:
            raise BodyRefused(400, "the body was cut off") from error
        finally:
            self.total -= self._sizes.pop(limit)
            self._aborted.discard(limit)
        return b"".join(parts)

    def _abort_largest(self) -> None:
        """Abort the largest bodies until the rest is within the limit."""
        active = [limit for limit in self._sizes if limit not in self._aborted]
        left = sum(self._sizes[limit] for limit in active)
        active.sort(key=self._sizes.__getitem__)
        while left > self._most:
            largest = active.pop()  # among equal sizes, the body that began last
            left -= self._sizes[largest]
            self._aborted.add(largest)
            if not largest.expired():
                largest.reschedule(asyncio.get_running_loop().time())
