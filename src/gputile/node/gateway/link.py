"""Defines the messages between gateway and agent, and the lock on the node.

Gateway and agent always come from the same installation, so the messages have no version. Each
message is encoded as MessagePack and preceded by its length, four bytes in big-endian order. The
kubelet's own messages are relayed as protobuf bytes.
"""

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from gputile.support.files import read_whole, write_whole

LINK: Final = "GPUTILE_GATEWAY_FD"
"""The environment variable with the agent's file descriptor of the connection to the gateway."""
CONNECT_TIMEOUT_S = 0.2
_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
_LOCK_MOST_BYTES = 4096


class TakeCharge(msgspec.Struct, frozen=True, tag="take-charge"):
    """The agent's request to take over the node from the agent of another gateway."""


class Advertise(msgspec.Struct, frozen=True, tag="offer"):
    """The agent's request to serve exactly ``resources`` to the kubelet.

    ``changed`` is the new ListAndWatchResponse of each resource whose devices have changed.
    """

    resources: tuple[str, ...]
    changed: dict[str, bytes]


class ServeClaims(msgspec.Struct, frozen=True, tag="serve-claims"):
    """The agent's request to serve the DRA driver to the kubelet.

    ``health`` is the driver's NodeWatchResourcesResponse, or None to stop serving.
    """

    health: bytes | None


class ListDevices(msgspec.Struct, frozen=True, tag="ask"):
    """The agent's request to call List of the kubelet's PodResources API within ``within`` s."""

    number: int
    within: float


class CallAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """The agent's response to the call ``number``."""

    number: int
    body: bytes


class CallRefused(msgspec.Struct, frozen=True, tag="refusal"):
    """The agent's refusal of the call ``number``. ``code`` is the name of a gRPC status."""

    number: int
    code: str
    details: str


class State(msgspec.Struct, frozen=True, tag="state"):
    """The state of the gateway. The gateway sends it to the agent after each change."""

    in_charge: bool = False  # whether this gateway has taken over the node
    registered: bool = False  # whether the kubelet has registered all resources
    epoch: float = 0.0  # when the current kubelet was first seen, in seconds of CLOCK_MONOTONIC
    starts: int = 0  # the number of agents that this gateway has started
    others: bool = False  # whether another gateway served the node when this agent started
    listening: bool = False  # whether the kubelet watches the devices of all resources


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A call of the kubelet. ``resource`` is a device plugin's resource or the DRA driver."""

    number: int
    method: str
    resource: str
    body: bytes


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    """The response to ``ListDevices``. ``body`` is None if the kubelet did not answer in time."""

    number: int
    body: bytes | None


FromAgent = TakeCharge | Advertise | ServeClaims | ListDevices | CallAnswer | CallRefused
FromGateway = State | Call | Listed
FROM_AGENT: Final["msgspec.msgpack.Decoder[FromAgent]"] = msgspec.msgpack.Decoder(FromAgent)
FROM_GATEWAY: Final["msgspec.msgpack.Decoder[FromGateway]"] = msgspec.msgpack.Decoder(FromGateway)

Received = TypeVar("Received")


class MessageChannel(Generic[Received]):
    """An end of the gateway's connection to the agent. ``decoder`` decodes the peer's messages."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: "msgspec.msgpack.Decoder[Received]",
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder

    def send(self, message: FromAgent | FromGateway) -> None:
        if self._writer.is_closing():
            return
        body = _ENCODER.encode(message)
        self._writer.write(_LENGTH.pack(len(body)) + body)

    async def messages(self) -> AsyncIterator[Received]:
        """Yield messages from the peer until the peer closes the connection.

        Raises:
            msgspec.MsgspecError: The peer has sent an invalid message.
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


class NodeLock:
    """The lock on the node. During an upgrade, it decides which of two gateways serves the node.

    The gateway that acquires the lock last serves the node. The older gateway and its agent then
    stop writing, and stop serving the kubelet. ``token`` identifies a gateway and its agent.
    """

    def __init__(self, file: Path, token: str) -> None:
        self._file = file
        self._token = token.encode()
        self._held = True

    def acquire(self) -> None:
        """Acquire the lock, even if another gateway holds it.

        Raises OSError if the lock file cannot be written.
        """
        try:
            write_whole(self._file, self._token)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            with self._file.open("r+b") as file:  # all tokens have the same size
                file.write(self._token)
        self._held = True

    @property
    def is_held(self) -> bool:
        """Whether this gateway was the last one to acquire the lock.

        If the file cannot be read, the previous result is returned again.
        """
        with contextlib.suppress(OSError):
            self._held = read_whole(self._file, _LOCK_MOST_BYTES) == self._token
        return self._held


def has_listener(path: Path) -> bool:
    """Return whether a process listens on the socket. A socket file may outlive its process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(CONNECT_TIMEOUT_S)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
