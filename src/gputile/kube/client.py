"""Sends requests to the API server, and names each failure by what it means.

The transport is aiohttp: a small POST over TLS costs it 0.08 to 0.15 ms of CPU where httpx takes 0.6, and a scheduler
that binds hundreds of pods a second shares its core with them.
"""

import logging
import math
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from gputile.kube.config import Access
from gputile.kube.credentials import Credential, Credentials
from gputile.kube.errors import (
    AnswerLost,
    BadAnswer,
    ConnectionFailed,
    ServerError,
    TooManyRequests,
    Unauthorized,
    api_error,
    redirected,
)
from gputile.kube.objects import NO_QUERY, Query
from gputile.kube.proxies import Proxy
from gputile.kube.timing import SYSTEM_CLOCK, Backoff, Clock
from gputile.version import VERSION

JSON = "application/json"
CONNECT_SECONDS = 5.0


class ApiRequest(NamedTuple):
    """What is sent; ``within`` is in seconds and covers all of it."""

    method: str
    path: str
    within: float
    query: Query = NO_QUERY
    body: bytes = b""
    content_type: str = JSON

    @property
    def target(self) -> str:
        """The path with the query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def __str__(self) -> str:
        return f"{self.method} {self.target}"


MOST_ANSWER_BYTES: Final = 128 << 20  # a page of 500 pods or nodes has 5 MiB


MOST_HEAD_BYTES: Final = 1 << 20  # of headers, and of answers that only announce one; an API server's have 1 KiB


class TooLongAnswer(Exception):
    """An answer has more bytes than it may have; the text says of what."""


def endless_head() -> str:
    """Return what is wrong with an answer whose headers go on."""
    return f"the answer has more than {MOST_HEAD_BYTES >> 20} MiB of headers: is the server an API server?"


def too_long(most_bytes: int) -> str:
    """Return what is wrong with an answer of more than so many bytes."""
    return f"the answer is longer than {most_bytes >> 20} MiB, which no API server sends for a page: is the server one?"


def compressed(encoding: str) -> str:
    """Return what is wrong with an answer of an encoding that nobody asked for."""
    return f"the answer is compressed ({encoding[:20]!r}), and plain JSON was asked for: is the server an API server?"


log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Attempts:
    """A GET is sent at most ``number`` times, with ``backoff`` between, or as long as the API server asks for.

    Where it asks for more than ``longest_wait_s``, that is the end.
    """

    number: int = 4
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.1, longest=2.0))
    clock: Clock = SYSTEM_CLOCK
    longest_wait_s: float = math.inf

    async def of(self, send: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return what ``send`` returns, called again while the API server is unreachable, overloaded or failing.

        Raises:
            KubeError: the failure of the last attempt.
        """
        for attempt in range(self.number - 1):
            try:
                return await send()
            except (ConnectionFailed, AnswerLost, ServerError, TooManyRequests) as error:
                log.info("trying again: %s", error)
                seconds = max(self.backoff.delay(attempt), error.retry_after)
                if seconds >= self.longest_wait_s:
                    raise
            await self.clock.sleep(seconds)
        return await send()


async def with_credential(credentials: Credentials, send: Callable[[Credential], Awaitable[Answer]]) -> Answer:
    """Return what ``send`` returns for the credential of now; after a 401 for the one that comes after it.

    Raises:
        KubeError: ``send`` raised it, or there is no credential.
    """
    credential = await credentials.current()
    try:
        return await send(credential)
    except Unauthorized:
        if not credentials.refused(credential):
            raise
    return await send(await credentials.current())


_TLS: Final[Mapping[str, str]] = {
    "WRONG_VERSION_NUMBER": "what answers there speaks no TLS; a server of plain HTTP has an http:// address",
    "HTTP_REQUEST": "what answers there speaks no TLS; a server of plain HTTP has an http:// address",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client certificate, and the kubeconfig's user has none",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not take the client certificate of the kubeconfig's user",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know who signed the client certificate of the kubeconfig's user",
    "UNEXPECTED_EOF_WHILE_READING": "it ended the connection while TLS began",
}


def reason_of(error: OSError) -> str:
    """Return why a connection did not come about, or broke."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message or "it cannot be verified"
        remedy = "certificate-authority of the kubeconfig says whom to trust"
        return f"its certificate is not trusted: {said.rstrip('.')}; {remedy}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _TLS.get(reason, f"TLS failed: {reason.replace('_', ' ').lower()}" if reason else "TLS failed")
    number = error.errno or 0  # a name that cannot be resolved has a negative one; asyncio says "Connect call failed"
    return os.strerror(number) if number > 0 else error.strerror or str(error) or type(error).__name__


MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

_ATTEMPTS = Attempts()
_MOST_CONNECTIONS = 64
_PART = 1 << 20
_PROTOCOL = "what came is no complete answer of HTTP"
_MOST_OF_A_REFUSAL = 1 << 20  # bytes; a Status has some KiB


class Connection:
    """A pool of keep-alive connections to one API server; an async context manager.

    ``within`` is in seconds and covers a whole request where the call gives none. ``attempts`` are those of a GET; a
    POST or PATCH is never sent twice, except after a 401 with other credentials. ``most_bytes`` bounds an answer
    that is read as a whole.
    """

    def __init__(
        self,
        access: Access,
        *,
        within: float = 10.0,
        attempts: Attempts = _ATTEMPTS,
        most_bytes: int | None = None,
    ) -> None:
        self._access = access
        self._most_bytes = most_bytes
        self._within = within
        self._attempts = attempts
        self._session: aiohttp.ClientSession | None = None

    @property
    def namespace(self) -> str:
        """The namespace of the kubeconfig's context, or of the pod."""
        return self._access.namespace

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=_MOST_CONNECTIONS, socket_factory=_watchful_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"User-Agent": f"gputile/{VERSION}", "Accept": JSON, "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, query: Query = NO_QUERY, *, within: float | None = None) -> bytes:
        """Return the object or list at ``path``; try again while the API server is unreachable, overloaded or failing.

        Raises:
            KubeError: the failure of the last attempt.
        """
        request = ApiRequest("GET", path, within or self._within, query)
        return await self._attempts.of(lambda: self._send(request))

    async def post(self, path: str, body: bytes, *, within: float | None = None) -> bytes:
        """Create ``body`` (JSON) under ``path`` and return what the API server stored.

        Raises:
            KubeError: it failed; ``may_have_been_executed`` tells whether it may have happened all the same.
        """
        return await self._send(ApiRequest("POST", path, within or self._within, body=body))

    async def patch(
        self, path: str, body: bytes, *, content_type: str = MERGE_PATCH, within: float | None = None
    ) -> bytes:
        """Change the object at ``path`` and return it.

        Raises:
            KubeError: it failed; ``may_have_been_executed`` tells whether it may have happened all the same.
        """
        request = ApiRequest("PATCH", path, within or self._within, body=body, content_type=content_type)
        return await self._send(request)

    async def delete(self, path: str, body: bytes = b"", *, within: float | None = None) -> bytes:
        """Delete the object at ``path``; ``body`` are DeleteOptions. Return what the API server answers.

        Raises:
            KubeError: it failed; ``may_have_been_executed`` tells whether it may have happened all the same.
        """
        return await self._send(ApiRequest("DELETE", path, within or self._within, body=body))

    @asynccontextmanager
    async def stream(self, path: str, query: Query, *, within: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch and yield its chunks as they come, for at most ``within`` seconds.

        Raises:
            KubeError: it could not be opened, or broke off. A watch that the API server ends properly just ends.
        """
        request = ApiRequest("GET", path, within, query)
        async with await self._open(request) as response, aclosing(_chunks(request, response)) as chunks:
            yield chunks

    async def _send(self, request: ApiRequest) -> bytes:
        async with await self._open(request) as response:
            with _named(request):
                return await self._body(request, response)

    async def _body(self, request: ApiRequest, response: aiohttp.ClientResponse) -> bytes:
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding != "identity":
            raise BadAnswer(f"{request}: {compressed(encoding)}")
        if self._most_bytes is None:
            return await response.read()
        body = await _beginning(response, self._most_bytes + 1)
        if len(body) > self._most_bytes:
            raise BadAnswer(f"{request}: {too_long(self._most_bytes)}")
        return body

    async def _open(self, request: ApiRequest) -> aiohttp.ClientResponse:
        return await with_credential(self._access.credentials, lambda credential: self._open_as(credential, request))

    async def _open_as(self, credential: Credential, request: ApiRequest) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the connection is used outside its `async with`")
        headers = list(self._access.impersonation)
        headers += [("Content-Type", request.content_type)] if request.body else []
        headers += [("Authorization", credential.authorization)] if credential.authorization else []
        proxy = self._access.proxy
        with _named(request, proxy):
            response = await self._session.request(
                request.method,
                URL(self._access.server + request.target, encoded=True),
                data=request.body or None,
                headers=headers,
                allow_redirects=False,
                proxy=proxy.url if proxy else None,
                ssl=credential.tls or True,
                server_hostname=self._access.tls_server_name,
                timeout=aiohttp.ClientTimeout(total=request.within, connect=CONNECT_SECONDS),
            )
            if response.status < 300:
                return response
            async with response:
                body = await _beginning(response, _MOST_OF_A_REFUSAL)
        if response.status < 400:
            target = response.headers.get("Location", "")
            raise redirected(request.method, request.target, response.status, self._access.server, target)
        retry_after = response.headers.get("Retry-After", "")
        seconds = float(retry_after) if retry_after.isdecimal() else 0.0
        raise api_error(request.method, request.target, response.status, body, seconds)


async def _beginning(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body, its first ``most`` bytes where it is longer."""
    body = bytearray()
    while len(body) < most and (part := await response.content.read(min(_PART, most - len(body)))):
        body += part
    return bytes(body)


async def _chunks(request: ApiRequest, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    with _named(request):
        async for chunk in response.content.iter_any():
            yield chunk


@contextmanager
def _named(request: ApiRequest, proxy: Proxy | None = None) -> Iterator[None]:
    what = str(request)
    by = f" (by {proxy.named_by})" if proxy else ""
    try:
        yield
    except aiohttp.ClientProxyConnectionError as error:
        why = reason_of(error.os_error)
        raise ConnectionFailed(f"{what}: no connection to the proxy {error.host}:{error.port}{by}: {why}") from error
    except aiohttp.ClientConnectorCertificateError as error:
        cause = error.certificate_error
        why = reason_of(cause) if isinstance(cause, OSError) else str(cause)
        raise ConnectionFailed(f"{what}: no connection to {error.host}:{error.port}: {why}") from error
    except aiohttp.ClientConnectorError as error:
        why = reason_of(error.os_error)
        raise ConnectionFailed(f"{what}: no connection to {error.host}:{error.port}: {why}") from error
    except aiohttp.ClientHttpProxyError as error:
        said = f"the proxy{by} answers {error.status} {error.message}".rstrip()
        raise ConnectionFailed(f"{what}: no connection: {said}") from error
    except aiohttp.ConnectionTimeoutError as error:
        raise ConnectionFailed(f"{what}: no connection{' through the proxy' if by else ''}{by}: {error}") from error
    except TimeoutError as error:
        raise AnswerLost(f"{what}: no complete answer within {request.within:g} s") from error
    except (aiohttp.ClientError, OSError) as error:
        why = reason_of(error) if isinstance(error, OSError) else _PROTOCOL
        raise AnswerLost(f"{what}: the connection broke: {why}") from error


def _watchful_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that notices a dead peer within half a minute, where the kernel's default is two hours."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return made
