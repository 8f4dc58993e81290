"""Sends requests to the API server, and names each failure by what it means.

The transport is aiohttp: a small POST over TLS costs it 0.08 to 0.15 ms of CPU where httpx takes 0.6, and a scheduler
that binds hundreds of pods a second shares its core with them.
"""

import logging
import math
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from gputile.kube.config import Access
from gputile.kube.credentials import Credential
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
from gputile.kube.timing import SYSTEM_CLOCK, Backoff, Clock
from gputile.version import VERSION

log = logging.getLogger(__name__)

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
MOST_ANSWER_BYTES: Final = 128 << 20  # a page of 500 pods or nodes has 5 MiB

_CONNECT_SECONDS = 5.0
_MOST_CONNECTIONS = 64
_PART = 1 << 20
_MOST_OF_A_REFUSAL = 1 << 20  # bytes; a Status has some KiB
_TLS_REASONS: Final[Mapping[str, str]] = {
    "WRONG_VERSION_NUMBER": "what answers there speaks no TLS; a server of plain HTTP has an http:// address",
    "HTTP_REQUEST": "what answers there speaks no TLS; a server of plain HTTP has an http:// address",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client certificate, and the kubeconfig's user has none",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not take the client certificate of the kubeconfig's user",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know who signed the client certificate of the kubeconfig's user",
    "UNEXPECTED_EOF_WHILE_READING": "it ended the connection while TLS began",
}


@dataclass(frozen=True, slots=True)
class Attempts:
    """A GET is sent at most ``number`` times, with ``backoff`` between, or as long as the API server asks for.

    Where it asks for more than ``longest_wait_s``, that is the end.
    """

    number: int = 4
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.1, longest=2.0))
    clock: Clock = SYSTEM_CLOCK
    longest_wait_s: float = math.inf


_ATTEMPTS = Attempts()


class _ApiRequest(NamedTuple):
    method: str
    target: str  # the path with the query
    within: float  # seconds, for all of it
    body: bytes = b""
    content_type: str = JSON

    def __str__(self) -> str:
        return f"{self.method} {self.target}"


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
        request = _ApiRequest("GET", _target(path, query), within or self._within)
        attempts = self._attempts
        for failures in range(attempts.number - 1):
            try:
                return await self._send(request)
            except (ConnectionFailed, AnswerLost, ServerError, TooManyRequests) as error:
                log.info("trying again: %s", error)
                pause = max(attempts.backoff.delay(failures), error.retry_after)
                if pause >= attempts.longest_wait_s:
                    raise
            await attempts.clock.sleep(pause)
        return await self._send(request)

    async def post(self, path: str, body: bytes, *, within: float | None = None) -> bytes:
        """Create ``body`` (JSON) under ``path`` and return what the API server stored.

        Raises:
            KubeError: it failed; ``may_have_been_executed`` tells whether it may have happened all the same.
        """
        return await self._send(_ApiRequest("POST", path, within or self._within, body))

    async def patch(
        self, path: str, body: bytes, *, content_type: str = MERGE_PATCH, within: float | None = None
    ) -> bytes:
        """Change the object at ``path`` and return it.

        Raises:
            KubeError: it failed; ``may_have_been_executed`` tells whether it may have happened all the same.
        """
        return await self._send(_ApiRequest("PATCH", path, within or self._within, body, content_type))

    async def delete(self, path: str, body: bytes = b"", *, within: float | None = None) -> bytes:
        """Delete the object at ``path``; ``body`` are DeleteOptions. Return what the API server answers.

        Raises:
            KubeError: it failed; ``may_have_been_executed`` tells whether it may have happened all the same.
        """
        return await self._send(_ApiRequest("DELETE", path, within or self._within, body))

    @asynccontextmanager
    async def stream(self, path: str, query: Query, *, within: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch and yield its chunks as they come, for at most ``within`` seconds.

        Raises:
            KubeError: it could not be opened, or broke off. A watch that the API server ends properly just ends.
        """
        request = _ApiRequest("GET", _target(path, query), within)

        async def chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
            with self._named_failures(request):
                async for chunk in response.content.iter_any():
                    yield chunk

        async with await self._open(request) as response, aclosing(chunks(response)) as opened:
            yield opened

    async def _send(self, request: _ApiRequest) -> bytes:
        """Return the body of the answer."""
        async with await self._open(request) as response:
            encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
            if encoding != "identity":
                said = f"the answer is compressed ({encoding[:20]!r}), and plain JSON was asked for"
                raise BadAnswer(f"{request}: {said}: is the server an API server?")
            with self._named_failures(request):
                if self._most_bytes is None:
                    return await response.read()
                body = await _beginning(response, self._most_bytes + 1)
            if len(body) > self._most_bytes:
                said = f"the answer is longer than {self._most_bytes >> 20} MiB, which no API server sends for a page"
                raise BadAnswer(f"{request}: {said}: is the server one?")
            return body

    async def _open(self, request: _ApiRequest) -> aiohttp.ClientResponse:
        """Return the answer once its head has come; after a 401 try the next credential, where there is one."""
        credentials = self._access.credentials
        credential = await credentials.current()
        try:
            return await self._open_as(credential, request)
        except Unauthorized:
            if not credentials.refused(credential):
                raise
        return await self._open_as(await credentials.current(), request)

    async def _open_as(self, credential: Credential, request: _ApiRequest) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the connection is used outside its `async with`")
        headers = list(self._access.impersonation)
        headers += [("Content-Type", request.content_type)] if request.body else []
        headers += [("Authorization", credential.authorization)] if credential.authorization else []
        proxy = self._access.proxy
        with self._named_failures(request):
            response = await self._session.request(
                request.method,
                URL(self._access.server + request.target, encoded=True),
                data=request.body or None,
                headers=headers,
                allow_redirects=False,
                proxy=proxy.url if proxy else None,
                ssl=credential.tls or True,
                server_hostname=self._access.tls_server_name,
                timeout=aiohttp.ClientTimeout(total=request.within, connect=_CONNECT_SECONDS),
            )
            if 200 <= response.status < 300:
                return response
            async with response:
                body = await _beginning(response, _MOST_OF_A_REFUSAL)
        if response.status < 200:
            raise BadAnswer(f"{request}: the server answers in another protocol than HTTP: is it an API server?")
        if response.status < 400:
            target = response.headers.get("Location", "")
            raise redirected(request.method, request.target, response.status, self._access.server, target)
        retry_after = response.headers.get("Retry-After", "")
        seconds = float(retry_after) if retry_after.isdecimal() else 0.0
        raise api_error(request.method, request.target, response.status, body, seconds)

    @contextmanager
    def _named_failures(self, request: _ApiRequest) -> Iterator[None]:
        """Raise the failures of aiohttp as those of ``gputile.kube.errors``."""
        by = f" (by {self._access.proxy.named_by})" if self._access.proxy else ""
        try:
            yield
        except aiohttp.ClientProxyConnectionError as error:
            why = f"to the proxy {error.host}:{error.port}{by}: {_reason(error.os_error)}"
            raise ConnectionFailed(f"{request}: no connection {why}") from error
        except aiohttp.ClientConnectorCertificateError as error:
            cause = error.certificate_error
            why = _reason(cause) if isinstance(cause, OSError) else str(cause)
            raise ConnectionFailed(f"{request}: no connection to {error.host}:{error.port}: {why}") from error
        except aiohttp.ClientConnectorError as error:
            why = _reason(error.os_error)
            raise ConnectionFailed(f"{request}: no connection to {error.host}:{error.port}: {why}") from error
        except aiohttp.ClientHttpProxyError as error:
            said = f"the proxy{by} answers {error.status} {error.message}".rstrip()
            raise ConnectionFailed(f"{request}: no connection: {said}") from error
        except aiohttp.ConnectionTimeoutError as error:
            through = f" through the proxy{by}" if by else ""
            raise ConnectionFailed(f"{request}: no connection{through}: {error}") from error
        except TimeoutError as error:
            raise AnswerLost(f"{request}: no complete answer within {request.within:g} s") from error
        except aiohttp.ClientResponseError as error:
            raise AnswerLost(f"{request}: what came is no answer of HTTP: is the server an API server?") from error
        except (aiohttp.ClientError, OSError) as error:
            why = _reason(error) if isinstance(error, OSError) else "it ended before the answer was complete"
            raise AnswerLost(f"{request}: the connection broke: {why}") from error


def _target(path: str, query: Query) -> str:
    return f"{path}?{urlencode(query)}" if query else path


async def _beginning(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body, its first ``most`` bytes where it is longer."""
    body = bytearray()
    while len(body) < most and (part := await response.content.read(min(_PART, most - len(body)))):
        body += part
    return bytes(body)


def _reason(error: OSError) -> str:
    """Return in words why a connection did not come about, or broke."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message or "it cannot be verified"
        remedy = "certificate-authority of the kubeconfig says whom to trust"
        return f"its certificate is not trusted: {said.rstrip('.')}; {remedy}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _TLS_REASONS.get(reason, f"TLS failed: {reason.replace('_', ' ').lower()}" if reason else "TLS failed")
    number = error.errno or 0  # a name that cannot be resolved has a negative one; asyncio says "Connect call failed"
    return os.strerror(number) if number > 0 else error.strerror or str(error) or type(error).__name__


def _watchful_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that notices a dead peer within half a minute, where the kernel's default is two hours."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return made
