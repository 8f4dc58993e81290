"""Defines what gateway and agent share: the messages on their socket, and the lock on the node.

Both come from one installation and start together, so the messages have no version. A message is its length in four
bytes, big endian, and MessagePack. The kubelet's own messages travel as the bytes that they are on the wire.
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
"""The environment variable with the file descriptor of the agent's end."""
CONNECT_TIMEOUT_S = 0.2
_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
_LOCK_MOST_BYTES = 4096


class TakeCharge(msgspec.Struct, frozen=True, tag="take-charge"):
    """From the agent: make agents of other gateways release the node."""


class Advertise(msgspec.Struct, frozen=True, tag="offer"):
    """From the agent: all ``resources`` to register; ``changed`` has the ListAndWatchResponse of those that changed."""

    resources: tuple[str, ...]
    changed: dict[str, bytes]


class ServeClaims(msgspec.Struct, frozen=True, tag="serve-claims"):
    """From the agent: serve as a DRA driver with this NodeWatchResourcesResponse; None: stop."""

    health: bytes | None


class ListDevices(msgspec.Struct, frozen=True, tag="ask"):
    """From the agent: call List of PodResources, within so many seconds."""

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

    ``in_charge``: no other gateway serves the node. ``registered``: the kubelet has registered all resources, and is
    ``listening`` to each. ``epoch``: when the present kubelet was first seen, by CLOCK_MONOTONIC, in seconds.
    ``starts``: how many agents were started. ``others``: another gateway served the node when this agent started.
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
    """From the gateway: the ListPodResourcesResponse for ``ListDevices``; None if the kubelet sent none in time."""

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
            msgspec.MsgspecError: it sent an invalid message.
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
    """Decides which of two gateways serves the node, as in an upgrade: the one that acquired the lock last.

    The older gateway and its agent then write nothing more, and stop serving the kubelet. ``token`` identifies the two.
    """

    def __init__(self, file: Path, token: str) -> None:
        self._file = file
        self._token = token.encode()
        self._held = True

    def acquire(self) -> None:
        """Take the lock, from any other holder.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(self._file, self._token)
        self._held = True

    @property
    def is_held(self) -> bool:
        """Whether nobody else has acquired the lock since; unchanged if the file cannot be read."""
        with contextlib.suppress(OSError):
            self._held = read_whole(self._file, _LOCK_MOST_BYTES) == self._token
        return self._held


def has_listener(path: Path) -> bool:
    """Return whether a process listens on the socket ``path``; a process that died leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(CONNECT_TIMEOUT_S)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
