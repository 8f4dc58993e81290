"""Defines the messages between gateway and agent, and their lock on the node.

Both come from the same installation and start together, so the messages have no version. A message
is encoded as its length in four bytes, big endian, and MessagePack. The kubelet's own messages
remain in their wire format.
"""

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from gputile.api.quantity import MIB
from gputile.support.files import read_whole, write_whole

log = logging.getLogger(__name__)

LINK: Final = "GPUTILE_GATEWAY_FD"
"""The environment variable with the file descriptor of the agent's end of the socket."""
CONNECT_TIMEOUT_S = 0.2
MOST_UNREAD = 64 * MIB  # four of the kubelet's largest messages
_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
_LOCK_MOST_BYTES = 4096


class TakeCharge(msgspec.Struct, frozen=True, tag="take-charge"):
    """Request of the agent to take over the node from the agents of other gateways."""


class Advertise(msgspec.Struct, frozen=True, tag="offer"):
    """The agent's request to serve exactly ``resources``.

    ``changed`` has the new ListAndWatchResponse of those with changed devices.
    """

    resources: tuple[str, ...]
    changed: dict[str, bytes]


class ServeClaims(msgspec.Struct, frozen=True, tag="serve-claims"):
    """The agent's request to serve as a DRA driver.

    ``health`` is its NodeWatchResourcesResponse; None stops serving.
    """

    health: bytes | None


class ListDevices(msgspec.Struct, frozen=True, tag="ask"):
    """The agent's request to call PodResources List, for at most ``within`` seconds."""

    number: int
    within: float


class CallAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """The agent's response to the call ``number``."""

    number: int
    body: bytes


class CallRefused(msgspec.Struct, frozen=True, tag="refusal"):
    """The agent's refusal of the call ``number``; ``code`` is the name of a gRPC status."""

    number: int
    code: str
    details: str


class State(msgspec.Struct, frozen=True, tag="state"):
    """The state of the gateway, which it sends to the agent after each change.

    ``in_charge``: this gateway has taken over the node. ``registered``: the kubelet has registered
    all resources. ``listening``: the kubelet watches the devices of all of them. ``epoch``: when
    the current kubelet was first seen, in seconds of CLOCK_MONOTONIC. ``starts``: how many agents
    were started. ``others``: another gateway served the node when this agent started.
    """

    in_charge: bool = False
    registered: bool = False
    epoch: float = 0.0
    starts: int = 0
    others: bool = False
    listening: bool = False


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A relayed call of the kubelet: ``method`` of ``resource``'s plugin or of the DRA driver."""

    number: int
    method: str
    resource: str
    body: bytes


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    """The response to ``ListDevices``: a ListPodResourcesResponse, None if it was late."""

    number: int
    body: bytes | None


FromAgent = TakeCharge | Advertise | ServeClaims | ListDevices | CallAnswer | CallRefused
FromGateway = State | Call | Listed

Received = TypeVar("Received")


class MessageChannel(Generic[Received]):
    """One end of the connection. ``decoder`` decodes the messages of the other end."""

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
        """Send a message; disconnect if the other end has left too many bytes unread."""
        if self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > MOST_UNREAD:
            log.error("the other end of the connection between gateway and agent does not read")
            self._writer.transport.abort()
            return
        body = _ENCODER.encode(message)
        self._writer.write(_LENGTH.pack(len(body)) + body)

    async def messages(self) -> AsyncIterator[Received]:
        """Yield messages from the peer until it closes the connection.

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


def to_agent(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> MessageChannel[FromAgent]:
    return MessageChannel(reader, writer, msgspec.msgpack.Decoder(FromAgent))


def to_gateway(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> MessageChannel[FromGateway]:
    return MessageChannel(reader, writer, msgspec.msgpack.Decoder(FromGateway))


class NodeLock:
    """Decides which of two gateways serves the node, as in an upgrade: the last to lock it.

    The older gateway and its agent then write nothing more, and stop serving the kubelet. ``token``
    identifies a gateway with its agent.
    """

    def __init__(self, file: Path, token: str) -> None:
        self._file = file
        self._token = token.encode()
        self._held = True

    def acquire(self) -> None:
        """Acquire the lock, even if another gateway holds it.

        Raises:
            OSError: the lock file cannot be written.
        """
        write_whole(self._file, self._token)
        self._held = True

    @property
    def is_held(self) -> bool:
        """Whether no other gateway has acquired the lock since.

        If the file cannot be read, the last result is kept.
        """
        with contextlib.suppress(OSError):
            self._held = read_whole(self._file, _LOCK_MOST_BYTES) == self._token
        return self._held


def has_listener(path: Path) -> bool:
    """Return whether a process listens on the socket ``path``, which may outlive its process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(CONNECT_TIMEOUT_S)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
