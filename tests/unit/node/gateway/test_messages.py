"""What gateway and agent say to each other survives the way, and what is damaged is refused."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.node.gateway.messages import (
    Advertise,
    Call,
    CallAnswer,
    CallRefused,
    FromAgent,
    FromGateway,
    ListDevices,
    Listed,
    MessageChannel,
    State,
    TakeCharge,
    to_agent,
    to_gateway,
)

names = st.text(max_size=20)
numbers = st.integers(min_value=0, max_value=2**40)
from_agent = st.one_of(
    st.builds(TakeCharge),
    st.builds(Advertise, st.lists(names).map(tuple), st.dictionaries(names, st.binary(max_size=5000))),
    st.builds(ListDevices, numbers, st.floats(min_value=0, max_value=100)),
    st.builds(CallAnswer, numbers, st.binary(max_size=5000)),
    st.builds(CallRefused, numbers, names, names),
)
from_gateway = st.one_of(
    st.builds(State, st.booleans(), st.booleans(), st.floats(min_value=0, max_value=1e9), numbers),
    st.builds(Call, numbers, names, names, st.binary(max_size=5000)),
    st.builds(Listed, numbers, st.none() | st.binary(max_size=5000)),
)


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[MessageChannel[FromAgent], MessageChannel[FromGateway]]]:
    """Do ``work`` with the gateway's end and the agent's end of a connection."""
    ours, theirs = socket.socketpair()
    gateway = to_agent(*await asyncio.open_connection(sock=ours))
    agent = to_gateway(*await asyncio.open_connection(sock=theirs))
    try:
        yield gateway, agent
    finally:
        gateway.close()
        agent.close()


@pytest.mark.anyio
@given(st.lists(from_agent, max_size=5), st.lists(from_gateway, max_size=5))
async def test_what_is_sent_arrives_in_order(up: list[FromAgent], down: list[FromGateway]) -> None:
    async with linked() as (gateway, agent):
        for message in up:
            agent.send(message)
        for answer in down:
            gateway.send(answer)
        async with asyncio.timeout(5):
            heard, told = gateway.messages(), agent.messages()
            assert [await anext(heard) for _ in up] == up
            assert [await anext(told) for _ in down] == down


@pytest.mark.anyio
@given(st.binary(max_size=200))
async def test_what_is_no_message_is_refused_and_never_hangs(junk: bytes) -> None:
    ours, theirs = socket.socketpair()
    gateway = to_agent(*await asyncio.open_connection(sock=ours))
    with theirs:
        theirs.sendall(len(junk).to_bytes(4, "big") + junk)
    try:
        async with asyncio.timeout(5):
            with contextlib.suppress(msgspec.MsgspecError):
                heard = [message async for message in gateway.messages()]
                assert all(isinstance(message, msgspec.Struct) for message in heard)
    finally:
        gateway.close()


@pytest.mark.anyio
async def test_nobody_is_told_anything_after_the_end() -> None:
    async with linked() as (gateway, agent):
        agent.close()
        gateway.close()
        gateway.send(State())
