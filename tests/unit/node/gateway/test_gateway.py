"""The kubelet's calls wait for the next agent, but not for ever; all who ask for the kubelet's list get it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from gputile.node.gateway import gateway as gateway_module
from gputile.node.gateway.gateway import MOST_TRIES, Relay, list_pod_resources
from gputile.node.gateway.link import (
    FROM_AGENT,
    FROM_GATEWAY,
    Call,
    CallAnswer,
    CallRefused,
    FromAgent,
    FromGateway,
    MessageChannel,
)
from gputile.node.gateway.plugins import RefusedError
from gputile.node.gateway.registration import CLIENT_OPTIONS
from tests.conftest import HANGS_S


class Agents:
    """Agents that come one after the other."""

    def __init__(self) -> None:
        self.relay = Relay()
        self._open: list[MessageChannel[FromAgent] | MessageChannel[FromGateway]] = []

    async def next(self) -> MessageChannel[FromGateway]:
        """Connect another one, and return its end."""
        ours, theirs = socket.socketpair()
        gateway = MessageChannel(*await asyncio.open_connection(sock=ours), FROM_AGENT)
        agent = MessageChannel(*await asyncio.open_connection(sock=theirs), FROM_GATEWAY)
        self._open += [gateway, agent]
        self.relay.connect(gateway)
        return agent

    async def hear(self, agent: MessageChannel[FromGateway]) -> Call:
        """Return the next call that an agent gets."""
        async with asyncio.timeout(HANGS_S):
            message = await anext(agent.messages())
        assert isinstance(message, Call)
        return message

    def ask(self, body: bytes = b"which") -> "asyncio.Task[bytes]":
        """Call as the kubelet does."""
        return asyncio.create_task(self.relay.call("Allocate", "aliyun.com/gpu-mem", body))

    def close(self) -> None:
        for link in self._open:
            link.close()


@asynccontextmanager
async def serving_agents() -> AsyncIterator[Agents]:
    agents = Agents()
    try:
        yield agents
    finally:
        agents.close()


@pytest.mark.requirement("G1")
@pytest.mark.anyio
async def test_a_refusal_keeps_its_status() -> None:
    async with serving_agents() as agents:
        agent, asked = await agents.next(), agents.ask()
        call = await agents.hear(agent)
        agents.relay.answer(CallRefused(call.number, "FAILED_PRECONDITION", "another GPU"))
        with pytest.raises(RefusedError, match="another GPU") as caught:
            await asked
        assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.requirement("G1")
@pytest.mark.anyio
async def test_calls_wait_for_the_next_agent_in_their_order() -> None:
    async with serving_agents() as agents:
        first = await agents.next()
        taken = agents.ask(b"taken along")
        assert (await agents.hear(first)).body == b"taken along"
        agents.relay.disconnect()
        waits = agents.ask(b"came meanwhile")
        await asyncio.sleep(0)
        second = await agents.next()
        for body in (b"taken along", b"came meanwhile"):
            call = await agents.hear(second)
            assert call.body == body
            agents.relay.answer(CallAnswer(call.number, body.upper()))
        assert (await taken, await waits) == (b"TAKEN ALONG", b"CAME MEANWHILE")


@pytest.mark.requirement("G1")
@pytest.mark.anyio
async def test_a_call_that_agents_die_of_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_agents() as agents:
        asked = agents.ask()
        await asyncio.sleep(0)
        for _ in range(MOST_TRIES + 2):  # somebody kills one after the other: not the call's fault
            await agents.hear(await agents.next())
            agents.relay.disconnect()
        assert not asked.done()
        monkeypatch.setattr(gateway_module, "AGENT_TIMEOUT_S", 0.0)
        await agents.next()
        with pytest.raises(RefusedError, match="this call crashes the node's agent"):
            await asked


@pytest.mark.requirement("G1")
@pytest.mark.anyio
async def test_no_agent_for_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "AGENT_TIMEOUT_S", 0.05)

    async with serving_agents() as agents:
        agent = await agents.next()
        asked = agents.ask()
        await agents.hear(agent)
        await asyncio.sleep(0.1)  # an agent that is there may take its time
        assert not asked.done()
        agents.relay.disconnect()
        with pytest.raises(RefusedError, match="does not run") as caught:
            await asked
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.requirement("G1")
@pytest.mark.anyio
async def test_a_kubelet_that_gives_up_is_forgotten() -> None:
    async with serving_agents() as agents:
        agent = await agents.next()
        asked = agents.ask(b"given up")
        await agents.hear(agent)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        agents.relay.disconnect()
        second = await agents.next()
        later = agents.ask(b"later")
        call = await agents.hear(second)
        assert call.body == b"later"
        agents.relay.answer(CallAnswer(call.number, b""))
        assert await later == b""


async def _answer(request: bytes, context: object) -> bytes:
    return b"the list"


async def kubelet(path: Path) -> grpc.aio.Server:
    server = grpc.aio.server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(_answer)
    service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method})
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


@pytest.mark.anyio
async def test_all_who_ask_before_the_kubelet_is_there_get_their_answer(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    async with grpc.aio.insecure_channel(f"unix:{path}", options=CLIENT_OPTIONS) as channel:
        asking = [asyncio.create_task(list_pod_resources(channel, 30.0)) for _ in range(3)]
        given_up = asyncio.create_task(list_pod_resources(channel, 30.0))
        await asyncio.sleep(0.1)
        given_up.cancel()
        server = await kubelet(path)
        assert await asyncio.gather(*asking) == [b"the list"] * 3
        assert given_up.cancelled()
        await server.stop(None)
