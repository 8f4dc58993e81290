"""What happens to a resource while its socket is made anew."""

import asyncio
from pathlib import Path

import grpc
import pytest

from gputile.node.gateway.registration import FIRST_PAUSE_S, LONGEST_PAUSE_S, Registrar, pause_after
from gputile.node.gateway.sockets import answers

RESOURCE = "aliyun.com/gpu-mem"
ALLOCATE = "/v1beta1.DevicePlugin/Allocate"


async def _carry(*_: object) -> bytes:
    await asyncio.sleep(30)
    return b""


@pytest.mark.anyio
@pytest.mark.requirement("G1")
async def test_what_is_offered_no_more_while_it_is_served_anew_is_not_served(tmp_path: Path) -> None:
    """A socket that answers without an owner would pass for another gateway's for ever."""

    def sockets() -> list[Path]:
        return list(tmp_path.glob("gputile-*"))

    registrar = Registrar(tmp_path, _carry)
    await registrar.advertise([RESOURCE], {RESOURCE: b""})
    await registrar.look()
    (first,) = sockets()
    channel = grpc.aio.insecure_channel(f"unix:{first}")
    allocate: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(ALLOCATE)
    call = allocate(b"")  # so that stopping takes a moment
    await asyncio.sleep(0.2)
    first.unlink()  # a kubelet that starts removes all sockets
    looking = asyncio.create_task(registrar.look())
    await asyncio.sleep(0.1)
    await registrar.advertise([], {})
    await looking
    assert not any(answers(path) for path in sockets())
    assert not registrar.others()
    call.cancel()
    await channel.close()
    await registrar.let_go()


def test_the_pause_after_days_of_failures_is_the_longest() -> None:
    assert [pause_after(failures) for failures in (1, 2)] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S]
    assert {pause_after(failures) for failures in (50, 1025, 10**9)} == {LONGEST_PAUSE_S}
