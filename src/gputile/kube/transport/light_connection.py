"""Sends the GET requests of a command that looks once and leaves.

They go over asyncio's own streams, and httptools parses the answers: ``kubectl inspect cgpu`` is to take less than
0.7 s of CPU for 100 nodes, and takes 0.61 s. To load aiohttp instead would cost 0.23 s more, to load httpcore 0.11 s.
The standard library's http.client would cost nothing, but it blocks: each request would need a thread, which no
time-out ends. It also takes an answer that is cut off in its first line for an empty one.
"""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

import httptools

from gputile.kube.access.credentials import Credential
from gputile.kube.access.kubeconfig import Access
from gputile.kube.errors import AnswerLost, BadAnswer, ConnectionFailed, api_error, redirected
from gputile.kube.transport.answer_bounds import (
    MOST_ANSWER_BYTES,
    MOST_HEAD_BYTES,
    TooLongAnswer,
    compressed,
    endless_head,
    too_long,
)
from gputile.kube.transport.attempts import Attempts, with_credential
from gputile.kube.transport.failure_wording import reason_of
from gputile.kube.transport.request import CONNECT_SECONDS, JSON, NO_QUERY, ApiRequest, Query
from gputile.version import VERSION

_CHUNK: Final = 1 << 18
_BEGINNING: Final = 60
_SWITCHING: Final = 101  # protocols
_ATTEMPTS: Final = Attempts()


class _Streams(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _Answer:
    """An HTTP answer as it comes; httptools calls its methods."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.body = bytearray()
        self.retry_after = 0.0
        self.location = ""
        self.encoding = ""
        self.beginning = b""
        self.received = 0
        self.complete = False
        self._began = self._framed = False

    def take(self, data: bytes, most_bytes: int) -> None:
        """Take the bytes that came.

        Raises:
            TooLongAnswer: there are more than an answer may have.
            httptools.HttpParserError: they are no answer.
        """
        self.beginning = self.beginning or data[:_BEGINNING]
        self.received += len(data)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self.parser.get_status_code() != _SWITCHING:
                raise
            self.complete = True  # what comes after the head is of another protocol
        if not self._began and self.received > MOST_HEAD_BYTES:
            raise TooLongAnswer(endless_head())
        if self.received > most_bytes + MOST_HEAD_BYTES:
            raise TooLongAnswer(too_long(most_bytes))

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing but the end of the connection tells where the body ends."""
        return self._began and not self._framed

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take note of a header."""
        name = name.lower()
        if name == b"retry-after" and value.isdigit():
            self.retry_after = float(value)
        elif name == b"location":
            self.location = value.decode("latin-1")
        elif name == b"content-encoding":
            self.encoding = value.decode("latin-1").strip().lower()
        self._framed |= name in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """Take note that the body comes now, unless what has come is about an answer that is still to come."""
        self._began = self.parser.get_status_code() >= 200

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self.body += data

    def on_message_complete(self) -> None:
        """Take note that this was all."""
        self.complete = self.parser.get_status_code() >= 200  # what comes before is about the answer


class LightConnection:
    """Keep-alive connections to one API server, without a proxy; an async context manager."""

    def __init__(self, access: Access, *, attempts: Attempts = _ATTEMPTS, most_bytes: int = MOST_ANSWER_BYTES) -> None:
        self._access = access
        self._most_bytes = most_bytes
        self._attempts = attempts
        self._idle: list[_Streams] = []
        place = urlsplit(access.server)
        self._host = place.hostname or ""
        self._secure = place.scheme == "https"
        self._port = place.port or (443 if self._secure else 80)
        self._prefix = place.path
        self._host_header = place.netloc.rpartition("@")[2]

    @property
    def namespace(self) -> str:
        """The namespace of the kubeconfig's context, or of the pod."""
        return self._access.namespace

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._idle:
            self._idle.pop().writer.transport.abort()
        await asyncio.sleep(0)  # what is told to end ends in the next round of the loop

    async def get(self, path: str, query: Query = NO_QUERY, *, within: float | None = None) -> bytes:
        """Return the object or list at ``path``; try again while the API server is unreachable, overloaded or failing.

        Raises:
            KubeError: the failure of the last attempt.
        """
        request = ApiRequest("GET", path, within or 10.0, query)
        return await self._attempts.of(lambda: self._send(request))

    async def _send(self, request: ApiRequest) -> bytes:
        return await with_credential(self._access.credentials, lambda credential: self._send_as(credential, request))

    async def _send_as(self, credential: Credential, request: ApiRequest) -> bytes:
        with _named(request):
            async with asyncio.timeout(request.within):
                while self._idle:
                    streams = self._idle.pop()
                    answer = await self._exchange(streams, credential, request)
                    if answer is not None:
                        return self._body_of(request, answer)
                    # the server had closed it, and has done nothing: the next one, at last a new one
                answer = await self._exchange(await self._connect(request, credential), credential, request)
        if answer is None:
            raise AnswerLost(f"{request}: the connection broke: no answer")
        return self._body_of(request, answer)

    def _body_of(self, request: ApiRequest, answer: _Answer) -> bytes:
        status, body = answer.parser.get_status_code(), bytes(answer.body)
        if status == _SWITCHING:
            raise BadAnswer(f"{request}: the server answers in another protocol than HTTP: is it an API server?")
        if answer.encoding not in ("", "identity"):
            raise BadAnswer(f"{request}: {compressed(answer.encoding)}")
        if status < 300:
            return body
        if status < 400:
            raise redirected(request.method, request.target, status, self._access.server, answer.location)
        raise api_error(request.method, request.target, status, body, answer.retry_after)

    async def _connect(self, request: ApiRequest, credential: Credential) -> _Streams:
        tls = (credential.tls or ssl.create_default_context()) if self._secure else None
        name = (self._access.tls_server_name or self._host) if self._secure else None
        place = f"{request}: no connection to {self._host}:{self._port}"
        try:
            async with asyncio.timeout(min(CONNECT_SECONDS, request.within)):
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, ssl=tls, server_hostname=name, limit=_CHUNK
                )
        except TimeoutError as error:
            raise ConnectionFailed(f"{place}: it took longer than {CONNECT_SECONDS:g} s") from error
        except OSError as error:
            raise ConnectionFailed(f"{place}: {reason_of(error)}") from error
        except UnicodeError as error:
            raise ConnectionFailed(f"{place}: this is not a host name") from error
        return _Streams(reader, writer)

    async def _exchange(self, streams: _Streams, credential: Credential, request: ApiRequest) -> _Answer | None:
        """Return the answer, None where the connection was closed before any of it."""
        lines = [
            f"GET {self._prefix}{request.target} HTTP/1.1",
            f"Host: {self._host_header}",
            f"User-Agent: gputile/{VERSION}",
            f"Accept: {JSON}",
            "Accept-Encoding: identity",
            *([f"Authorization: {credential.authorization}"] if credential.authorization else ()),
            *(f"{name}: {value}" for name, value in self._access.impersonation),
        ]
        answer, begun, keep = _Answer(), False, False
        try:
            streams.writer.write("\r\n".join([*lines, "", ""]).encode(errors="replace"))
            await streams.writer.drain()
            while not answer.complete:
                data = await streams.reader.read(_CHUNK)
                if not data:
                    break
                begun = True
                answer.take(data, self._most_bytes)
            keep = answer.complete and answer.parser.should_keep_alive()
        except ConnectionError:
            if begun:
                raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            begins = f": it begins {answer.beginning.decode(errors='replace')!r}" if answer.received else ""
            raise AnswerLost(f"{request}: the connection broke: this is no HTTP{begins}") from error
        finally:
            if keep:
                self._idle.append(streams)
            else:
                streams.writer.transport.abort()
        if begun and not answer.complete and not answer.ends_with_connection:
            raise AnswerLost(f"{request}: the connection broke: it ended in the middle of the answer")
        return answer if begun else None


@contextmanager
def _named(request: ApiRequest) -> Iterator[None]:
    try:
        yield
    except TooLongAnswer as error:
        raise BadAnswer(f"{request}: {error}") from error
    except TimeoutError as error:
        raise AnswerLost(f"{request}: no complete answer within {request.within:g} s") from error
    except OSError as error:
        raise AnswerLost(f"{request}: the connection broke: {reason_of(error)}") from error
