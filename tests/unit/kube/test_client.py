"""Requests to the API server: what is sent again, what may have been executed, and what an error says."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gputile.kube import errors
from gputile.kube.client import Attempts, Clock, Connection
from gputile.kube.config import Access
from gputile.kube.credentials import FixedCredentials, TokenFileCredentials
from gputile.kube.errors import api_error
from gputile.kube.proxy import Proxy
from tests.conftest import HANGS_S
from tests.fakes.apiserver import QUICK, FakeApiServer
from tests.localcluster.identities import Authority
from tests.unit.kube.views import PODS, pod

BINDING = "/api/v1/namespaces/ns/pods/p/binding"


@asynccontextmanager
async def served(attempts: int = 4, within: float = HANGS_S) -> AsyncIterator[tuple[FakeApiServer, Connection]]:
    server = FakeApiServer()
    server.put(PODS, pod("p"))
    async with server.connected(attempts, within) as connection:
        yield server, connection


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "kind", "executed"),
    [
        (400, errors.ApiError, False),
        (401, errors.Unauthorized, False),
        (403, errors.Forbidden, False),
        (404, errors.NotFound, False),
        (409, errors.Conflict, False),
        (410, errors.Gone, False),
        (422, errors.Invalid, False),
        (429, errors.TooManyRequests, False),
        (500, errors.ServerError, True),
        (503, errors.ServerError, True),
        (504, errors.ServerError, True),
    ],
)
async def test_a_refusal_says_what_it_means_and_is_not_sent_again(
    status: int, kind: type[errors.ApiError], executed: bool
) -> None:
    async with served() as (server, connection):
        server.fault("post", "answer", status=status)
        with pytest.raises(kind) as raised:
            await connection.post(BINDING, b"{}")
        assert type(raised.value) is kind
        assert raised.value.status == status
        assert raised.value.reason == f"Fault{status}"
        assert raised.value.may_have_been_executed is executed
        assert f"POST {BINDING}" in str(raised.value)
        assert len(server.requests) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["hang", "reset", "lose", "cut"])
async def test_a_lost_answer_may_have_been_executed(what: str) -> None:
    async with served(within=2.0 if what == "hang" else HANGS_S) as (server, connection):
        server.fault("post", what)
        with pytest.raises(errors.AnswerLost) as raised:
            await connection.post(PODS, b'{"metadata": {"name": "q"}}')
        assert raised.value.may_have_been_executed
        assert server.count("post") == 1
        assert ("q" in server.store[PODS]) is (what in ("lose", "cut"))


@pytest.mark.anyio
async def test_a_redirect_is_not_followed_and_has_executed_nothing() -> None:
    async with served() as (server, connection):
        server.fault("post", "answer", status=307, headers={"Location": "https://login.example.com/"})
        with pytest.raises(errors.ApiError, match="redirects: is this an API server") as raised:
            await connection.post(BINDING, b"{}")
        assert not raised.value.may_have_been_executed


@pytest.mark.anyio
async def test_a_refused_connection_has_executed_nothing() -> None:
    server = FakeApiServer()
    async with server.running():
        access = server.access()
    async with Connection(access, attempts=Attempts(2, QUICK)) as connection:
        with pytest.raises(errors.ConnectionFailed) as raised:
            await connection.post(BINDING, b"{}")
        assert not raised.value.may_have_been_executed
        address = access.server.removeprefix("http://")
        with pytest.raises(
            errors.ConnectionFailed, match=f"^GET {PODS}: no connection to {address}: Connection refused$"
        ):
            await connection.get(PODS)


@pytest.mark.anyio
async def test_a_get_is_tried_again_and_waits_as_long_as_it_is_asked() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    server = FakeApiServer()
    server.put(PODS, pod("p"))
    async with (
        server.running(),
        Connection(
            server.access(), attempts=Attempts(backoff=QUICK, clock=Clock(sleep=sleep)), within=HANGS_S
        ) as connection,
    ):
        server.fault("get", "answer", status=429, headers={"Retry-After": "7"})
        server.fault("get", "answer", status=503, body=b"<html>bad gateway</html>")
        server.fault("get", "reset")
        assert b"uid-p" in await connection.get(f"{PODS}/p")
    assert waits[0] == 7.0
    assert all(0 < wait <= 0.004 for wait in waits[1:])


@pytest.mark.anyio
async def test_a_rotated_token_is_read_again_after_a_refusal(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    server = FakeApiServer()
    async with server.running():
        access = Access(server.url, TokenFileCredentials(token, None))
        async with Connection(access) as connection:
            server.token = "old"
            await connection.post(PODS, b'{"metadata": {"name": "a"}}')
            server.token = "new"
            with pytest.raises(errors.Unauthorized):
                await connection.post(PODS, b'{"metadata": {"name": "b"}}')
            token.write_text("new\n")
            await connection.post(PODS, b'{"metadata": {"name": "b"}}')
    assert set(server.store[PODS]) == {"a", "b"}


@pytest.mark.anyio
async def test_the_server_and_the_client_show_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    serving = authority.server("server", ["127.0.0.1"])
    client = authority.client("client", "gputile")
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    server_tls.load_cert_chain(serving.certificate, serving.key)
    server_tls.verify_mode = ssl.CERT_REQUIRED
    client_tls = ssl.create_default_context(cafile=authority.certificate)
    client_tls.load_cert_chain(client.certificate, client.key)

    server = FakeApiServer()
    server.put(PODS, pod("p"))
    async with server.running(server_tls):
        async with Connection(Access(server.url, FixedCredentials(None, client_tls))) as connection:
            assert b"uid-p" in await connection.get(PODS)
        strangers = Access(server.url, FixedCredentials(None, ssl.create_default_context()))
        async with Connection(strangers, attempts=Attempts(1)) as connection:
            with pytest.raises(errors.ConnectionFailed, match="certificate"):
                await connection.get(PODS)


@pytest.mark.anyio
async def test_a_proxy_that_does_not_serve_is_named_with_what_names_it_and_without_its_password() -> None:
    server = FakeApiServer()
    async with server.running():
        closed = server.url
    proxy = Proxy(closed, "HTTPS_PROXY")
    access = Access("https://10.0.0.1:6443", FixedCredentials(None, None), proxy=proxy)
    async with Connection(access, attempts=Attempts(1, QUICK)) as connection:
        place = closed.removeprefix("http://")
        with pytest.raises(
            errors.ConnectionFailed, match=rf"to the proxy {place} \(by HTTPS_PROXY\): Connection refused"
        ):
            await connection.get(PODS)
    async with server.running():
        access = replace(access, proxy=Proxy(server.url.replace("http://", "http://ana:s3cret@"), "HTTPS_PROXY"))
        async with Connection(access, attempts=Attempts(1, QUICK)) as connection:
            server.fault("any", "answer", status=407)
            with pytest.raises(errors.ConnectionFailed, match=r"through the proxy \(by HTTPS_PROXY\): 407") as refused:
                await connection.get(PODS)
    assert "s3cret" not in str(refused.value)


def test_what_a_proxy_says_is_kept() -> None:
    error = api_error("GET", "/api", 502, b"<html>upstream is away</html>")
    assert error.may_have_been_executed
    assert "upstream is away" in str(error)
