"""Defines what gateway and agent share: the messages on their socket, and the lock on the node.

Both ends come from one installation and are started together, so there is one version. A message is its length in
four bytes, big endian, and MessagePack. The kubelet's own messages travel as the bytes that they are on the wire.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from gputile.support.files import read_whole, write_whole

LINK: Final = "GPUTILE_GATEWAY_FD"
"""The environment variable that tells the agent the file descriptor of its end."""
CONNECT_WITHIN_S = 0.2
_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
_LOCK_MOST_BYTES = 4096


class TakeCharge(msgspec.Struct, frozen=True, tag="take-charge"):
    """From the agent: it is ready to serve the node; agents of other gateways are to release it."""


class Advertise(msgspec.Struct, frozen=True, tag="offer"):
    """From the agent: all ``resources`` to register, and the ListAndWatchResponse of each whose devices ``changed``."""

    resources: tuple[str, ...]
    changed: dict[str, bytes]


class ServeClaims(msgspec.Struct, frozen=True, tag="serve-claims"):
    """From the agent: serve as a DRA driver, with this NodeWatchResourcesResponse; None to serve as none."""

    health: bytes | None


class ListDevices(msgspec.Struct, frozen=True, tag="ask"):
    """From the agent: PodResources' List, within so many seconds."""

    number: int
    within: float


class CallAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """From the agent: the answer to the call ``number``."""

    number: int
    body: bytes


class CallRefused(msgspec.Struct, frozen=True, tag="refusal"):
    """From the agent: the call ``number`` fails, with a gRPC status ``code`` by its name."""

    number: int
    code: str
    details: str


class State(msgspec.Struct, frozen=True, tag="state"):
    """From the gateway, when it changes.

    ``in_charge``: no other gateway serves the node. ``registered``: the kubelet has taken all resources. ``epoch``:
    when the present kubelet was first seen, by CLOCK_MONOTONIC, in seconds. ``starts``: how many agents were started.
    ``others``: another gateway served the node when this agent came. ``listening``: the kubelet hears each resource.
    """

    in_charge: bool = False
    registered: bool = False
    epoch: float = 0.0
    starts: int = 0
    others: bool = False
    listening: bool = False


class Call(msgspec.Struct, frozen=True, tag="call"):
    """From the gateway: the kubelet calls ``method`` of v1beta1.DevicePlugin on the plugin of ``resource``."""

    number: int
    method: str
    resource: str
    body: bytes


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    """From the gateway: the ListPodResourcesResponse that was asked for; None where the kubelet gave none in time."""

    number: int
    body: bytes | None


FromAgent = TakeCharge | Advertise | ServeClaims | ListDevices | CallAnswer | CallRefused
FromGateway = State | Call | Listed

Received = TypeVar("Received")


class MessageChannel(Generic[Received]):
    """One end of the connection. ``decoder`` reads what the other end sends."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: "msgspec.msgpack.Decoder[Received]"
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder

    def send(self, message: FromAgent | FromGateway) -> None:
        if not self._writer.is_closing():
            body = _ENCODER.encode(message)
            self._writer.write(_LENGTH.pack(len(body)) + body)

    async def messages(self) -> AsyncIterator[Received]:
        """Yield what the other end sends, until it hangs up.

        Raises:
            msgspec.MsgspecError: it sent something else than a message.
        """
        while True:
            try:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                body = await self._reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            yield self._decoder.decode(body)

    def close(self) -> None:
        self._writer.close()


def to_agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> MessageChannel[FromAgent]:
    return MessageChannel(reader, writer, msgspec.msgpack.Decoder(FromAgent))


def to_gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> MessageChannel[FromGateway]:
    return MessageChannel(reader, writer, msgspec.msgpack.Decoder(FromGateway))


class NodeLock:
    """Decides who serves the node when two gateways run for a moment, as in an upgrade: the one that took it last.

    The older gateway and its agent then write nothing more, and stop serving the kubelet. ``token`` is theirs alone.
    """

    def __init__(self, file: Path, token: str) -> None:
        self._file = file
        self._token = token.encode()
        self._mine = True

    def take(self) -> None:
        """Take the lock from any holder.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(self._file, self._token)
        self._mine = True

    @property
    def mine(self) -> bool:
        """Whether nobody else took the lock since; unchanged where the file cannot be read."""
        with contextlib.suppress(OSError):
            self._mine = read_whole(self._file, _LOCK_MOST_BYTES) == self._token
        return self._mine


def answers(path: Path) -> bool:
    """Return whether a process listens at the socket ``path``; one that died leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(CONNECT_WITHIN_S)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
