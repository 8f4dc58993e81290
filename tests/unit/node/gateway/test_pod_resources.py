"""Several who ask the kubelet for its list at the same time, while it is away."""

import asyncio
from pathlib import Path

import grpc
import pytest

from gputile.node.gateway.gateway import PodResources


async def _answer(request: bytes, context: object) -> bytes:
    return b"the list"


@pytest.mark.anyio
async def test_all_who_ask_get_their_answer_though_one_closes_the_connection_of_another(tmp_path: Path) -> None:
    for number in range(4):
        socket = tmp_path / f"{number}.sock"
        resources, server = PodResources(socket), grpc.aio.server()
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(_answer)
        service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method})
        server.add_generic_rpc_handlers((service,))
        server.add_insecure_port(f"unix:{socket}")
        asking = []
        for _ in range(3):
            asking.append(asyncio.create_task(resources.list(30.0)))
            await asyncio.sleep(0.007)
        await asyncio.sleep(0.2)
        await server.start()
        assert await asyncio.gather(*asking) == [b"the list"] * 3
        await resources.close()
        await server.stop(None)


@pytest.mark.anyio
async def test_who_is_told_to_end_while_asking_ends(tmp_path: Path) -> None:
    resources = PodResources(tmp_path / "none.sock")
    asking = asyncio.create_task(resources.list(60.0))
    await asyncio.sleep(0.1)
    asking.cancel()
    done, _ = await asyncio.wait([asking], timeout=10.0)
    assert done
    assert asking.cancelled()
    await resources.close()
