"""GET requests without aiohttp: what is tried again, what an error says, and answers of every form."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from gputile.kube import errors
from gputile.kube.access.credentials import FixedCredentials, TokenFileCredentials
from gputile.kube.access.kubeconfig import Access
from gputile.kube.clock import Clock
from gputile.kube.transport.attempts import Attempts
from gputile.kube.transport.light_connection import LightConnection
from tests.fakes.apiserver import FakeApiServer
from tests.localcluster.certificates import Authority
from tests.unit.kube.views import PODS, pod

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("V2")]


async def at_once(_seconds: float) -> None:
    return None


def light(access: Access) -> LightConnection:
    return LightConnection(access, attempts=Attempts(clock=Clock(sleep=at_once)))


async def test_connections_are_used_again_and_side_by_side() -> None:
    server = FakeApiServer()
    server.put(PODS, {**pod("p"), "metadata": {"name": "p", "uid": "uid-p", "labels": {"a": "b", "c": ""}}})
    async with server.running(), light(server.access()) as connection:
        bodies = await asyncio.gather(*(connection.get(f"{PODS}/p") for _ in range(3)))
        assert all(b"uid-p" in body for body in bodies)
        assert b"uid-p" in await connection.get(PODS, {"limit": "5", "labelSelector": "a=b,c"})
        assert server.requests[-1].query == {"limit": "5", "labelSelector": "a=b,c"}


async def test_a_get_is_tried_again() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    server = FakeApiServer()
    server.put(PODS, pod("p"))
    async with (
        server.running(),
        LightConnection(server.access(), attempts=Attempts(clock=Clock(sleep=sleep))) as connection,
    ):
        server.fault("get", "answer", status=429, headers={"Retry-After": "7"})
        server.fault("get", "answer", status=503, body=b"<html>bad gateway</html>")
        server.fault("get", "cut")
        assert b"uid-p" in await connection.get(f"{PODS}/p")
    assert waits[0] == 7.0
    assert len(waits) == 3


@pytest.mark.parametrize(
    ("status", "kind"), [(401, errors.Unauthorized), (403, errors.Forbidden), (404, errors.NotFound)]
)
async def test_a_refusal_says_what_it_means(status: int, kind: type[errors.ApiError]) -> None:
    server = FakeApiServer()
    async with server.running(), light(server.access()) as connection:
        server.fault("get", "answer", status=status)
        with pytest.raises(kind, match=f"^GET {PODS}: {status} "):
            await connection.get(PODS)


async def test_a_redirect_names_the_server_the_target_and_what_to_do() -> None:
    server = FakeApiServer()
    async with server.running(), light(server.access()) as connection:
        server.fault("get", "answer", status=302, headers={"Location": "https://login.example.com/"})
        said = rf"^GET {PODS}: 302 Redirected; http://127.0.0.1:\d+ redirects to 'https://login.*kubeconfig"
        with pytest.raises(errors.Redirected, match=said):
            await connection.get(PODS)


async def test_a_server_that_is_silent_or_not_there() -> None:
    server = FakeApiServer()
    async with server.running(), light(server.access()) as connection:
        for _ in range(4):
            server.fault("get", "hang")
        with pytest.raises(errors.AnswerLost, match=r"no complete answer within 0\.05 s"):
            await connection.get(PODS, within=0.05)
        address = server.url.removeprefix("http://")
    async with light(Access(f"http://{address}", FixedCredentials(None, None))) as connection:
        with pytest.raises(
            errors.ConnectionFailed, match=f"^GET {PODS}: no connection to {address}: Connection refused"
        ):
            await connection.get(PODS)


@pytest.mark.parametrize(
    ("said", "body", "error"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end", ""),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"{}", ""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b"{}", ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b"", "it ended in the middle of the answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", b"", "this is no HTTP"),
        (b"", b"", "no answer"),
        (b"HTTP/1.1 200", b"", "it ended in the middle of the answer"),
    ],
)
async def test_answers_of_every_form(said: bytes, body: bytes, error: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with light(Access(f"http://127.0.0.1:{port}/prefix", FixedCredentials("Bearer t", None))) as connection:
            if not error:
                assert await connection.get(PODS) == body
                return
            with pytest.raises(errors.AnswerLost, match=error):
                await connection.get(PODS)


async def test_a_rotated_token_is_read_again_after_a_refusal(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    server = FakeApiServer()
    server.put(PODS, pod("p"))
    async with server.running(), light(Access(server.url, TokenFileCredentials(token, None))) as connection:
        server.token = "old"
        await connection.get(PODS)
        server.token = "new"
        with pytest.raises(errors.Unauthorized):
            await connection.get(PODS)
        token.write_text("new\n")
        assert b"uid-p" in await connection.get(PODS)


async def test_the_server_and_the_client_show_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    serving, client = authority.server("server", ["127.0.0.1"]), authority.client("client", "gputile")
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    server_tls.load_cert_chain(serving.certificate, serving.key)
    server_tls.verify_mode = ssl.CERT_REQUIRED
    client_tls = ssl.create_default_context(cafile=authority.certificate)
    client_tls.load_cert_chain(client.certificate, client.key)
    server = FakeApiServer()
    server.put(PODS, pod("p"))
    async with server.running(server_tls):
        async with light(Access(server.url, FixedCredentials(None, client_tls))) as connection:
            assert b"uid-p" in await connection.get(PODS)
        async with light(Access(server.url, FixedCredentials(None, ssl.create_default_context()))) as connection:
            with pytest.raises(errors.ConnectionFailed, match="certificate"):
                await connection.get(PODS)


async def test_each_request_says_as_whom_to_act() -> None:
    server = FakeApiServer()
    server.put(PODS, pod("p"))
    async with server.running():
        access = replace(server.access(), impersonation=(("Impersonate-User", "ü"), ("Impersonate-Group", "g")))
        async with light(access) as connection:
            await connection.get(PODS)
    headers = server.requests[0].headers
    assert (headers["impersonate-user"], headers["impersonate-group"]) == ("ü", "g")
