"""The gateway as a DRA driver, seen by a client that does what the kubelet does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from gputile.node.gateway import kubelet_pb2 as dra
from gputile.node.gateway.plugins import ClaimsPlugin, RefusedError
from tests.conftest import HANGS_S

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B8")]
PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
HEALTH = "/v1alpha1.DRAResourceHealth/NodeWatchResources", "/v1.DRAResourceHealth/NodeWatchResources"


async def carry(method: str, resource: str, body: bytes) -> bytes:
    """Answer as an agent that is there, or that refuses the claim ``away``."""
    if b"away" in body:
        raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the agent of this node does not run")
    return f"{method} {resource} ".encode() + body


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[ClaimsPlugin]:
    plugin = ClaimsPlugin(directory, carry)
    plugin.set_health(b"well")
    await plugin.reconcile()
    try:
        yield plugin
    finally:
        await plugin.stop()


def sockets(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.sock"))


@asynccontextmanager
async def calling(directory: Path) -> AsyncIterator[grpc.aio.Channel]:
    (socket,) = sockets(directory)
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        yield channel


async def test_the_kubelet_finds_driver_and_versions_at_the_socket(short: Path) -> None:
    async with serving(short), calling(short) as channel:
        info: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        info = channel.unary_unary("/pluginregistration.Registration/GetInfo")
        found = dra.PluginInfo.FromString(await info(b""))
        assert (found.type, found.name, found.endpoint) == ("DRAPlugin", "gpu.gputile.io", str(sockets(short)[0]))
        assert found.supported_versions[0] == "v1.DRAPlugin"
        status: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        status = channel.unary_unary("/pluginregistration.Registration/NotifyRegistrationStatus")
        for registered in (True, False):
            told = dra.RegistrationStatus(plugin_registered=registered, error="" if registered else "no such version")
            assert await status(told.SerializeToString()) == b""


async def test_calls_go_to_the_agent_and_its_refusals_back(short: Path) -> None:
    async with serving(short), calling(short) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PREPARE)
        assert await call(b"claim") == b"NodePrepareResources gpu.gputile.io claim"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"away")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("method", HEALTH)
async def test_health_is_told_to_those_who_listen_when_it_changes(short: Path, method: str) -> None:
    async with serving(short) as plugin, calling(short) as channel:
        stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method)
        heard = aiter(stream(b""))
        async with asyncio.timeout(HANGS_S):
            assert await anext(heard) == b"well"
            plugin.set_health(b"well")
            plugin.set_health(b"sick")
            assert await anext(heard) == b"sick"


async def test_a_socket_that_somebody_removed_is_there_again_under_another_name(short: Path) -> None:
    async with serving(short) as plugin:
        (before,) = sockets(short)
        await plugin.reconcile()
        assert sockets(short) == [before]
        before.unlink()
        await plugin.reconcile()
        (after,) = sockets(short)
        assert after != before


async def test_what_a_dead_gateway_has_left_is_removed(short: Path) -> None:
    (short / "gpu.gputile.io-dead-reg.sock").touch()
    async with serving(short):
        assert [path.name for path in sockets(short) if "dead" in path.name] == []


async def test_a_node_without_claims_is_forgotten_by_the_kubelet(short: Path) -> None:
    async with serving(short) as plugin:
        plugin.set_health(None)
        await plugin.reconcile()
        assert sockets(short) == []


async def test_a_directory_that_is_not_there_ends_nothing(short: Path) -> None:
    async with serving(short / "none") as plugin:
        await plugin.reconcile()
        plugin.set_health(None)
        await plugin.reconcile()
