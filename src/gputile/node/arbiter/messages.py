"""Encodes and decodes the messages between the arbiter and its clients or the agent.

A client is a process in a container that has loaded the library. Arbiter and clients exchange
messages of 32 bytes (docs/reference/arbiter-protocol.md). Arbiter and agent exchange lines of JSON.
The agent sends the list of all containers with their shares. The arbiter reports how long each
container has used each GPU.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final, TypeVar

import msgspec

from gputile.node.arbiter.accounts import Share
from gputile.node.native_layouts import ARBITER_VERSION, MOST_GPUS

VERSION: Final = ARBITER_VERSION
LAYOUT: Final = struct.Struct("<BBHIQQQ")
"""The fields of a message: kind, version, number of the GPU, number of the turn, a, b, and 0."""
SIZE: Final = LAYOUT.size
SOCKET: Final = "time.sock"
"""The name of the arbiter's socket in an allocation directory."""
SHARE_FILE: Final = "share"
"""The name of the file in an allocation directory with the shares while no arbiter runs."""


class MessageKind(IntEnum):
    """The kind of a message. Processes send kinds up to 64, and the arbiter sends the others."""

    HELLO = 1
    GPU = 2
    WANT = 3
    BUSY = 4
    DONE = 5
    WELCOME = 65
    TURN = 66
    LIMIT = 67
    WAIT = 68


_WITHOUT_VERSION: Final = (MessageKind.HELLO, MessageKind.WELCOME)


class ProtocolError(ValueError):
    """The bytes from a client are not a valid message."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message between arbiter and client. The kind defines what ``a`` and ``b`` mean."""

    kind: MessageKind
    gpu: int = 0
    turn: int = 0
    a: int = 0
    b: int = 0

    def encode(self) -> bytes:
        version = 0 if self.kind in _WITHOUT_VERSION else VERSION
        return LAYOUT.pack(self.kind, version, self.gpu, self.turn, self.a, self.b, 0)


def decode(data: bytes) -> Message:
    """Decode a message. Raises ProtocolError if the bytes are not a message of ``VERSION``."""
    if len(data) != SIZE:
        raise ProtocolError(f"{len(data)} bytes")
    number, version, gpu, turn, a, b, _ = LAYOUT.unpack(data)
    try:
        kind = MessageKind(number)
    except ValueError as error:
        raise ProtocolError(f"kind {number}") from error
    if version != (0 if kind in _WITHOUT_VERSION else VERSION):
        raise ProtocolError(f"version {version}")
    if gpu >= MOST_GPUS:
        raise ProtocolError(f"GPU {gpu}")
    return Message(kind, gpu, turn, a, b)


def uuid_fields(uuid: str) -> tuple[int, int]:
    """Return the fields ``a`` and ``b`` of a message ``GPU`` for the UUID of a GPU or MIG instance.

    Raises ProtocolError if the UUID is invalid.
    """
    digits = uuid.partition("-")[2].replace("-", "")
    try:
        a, b = struct.unpack("<QQ", bytes.fromhex(digits))
    except (ValueError, struct.error) as error:
        raise ProtocolError(f"{uuid!r} is not the UUID of a GPU") from error
    return a, b


DEFAULT_QUANTUM_MS: Final = 30
DEFAULT_LONGEST_WAIT_MS: Final = 1000


class LineError(ValueError):
    """A line from the arbiter or the agent is not a valid message."""


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All containers that the arbiter serves, and the arbiter's settings.

    ``containers`` maps the allocation directory of a container to its share of each GPU, by UUID.
    """

    containers: dict[str, dict[str, Share]] = {}
    quantum_ms: int = DEFAULT_QUANTUM_MS
    longest_wait_ms: int = DEFAULT_LONGEST_WAIT_MS


Nanoseconds = Annotated[int, msgspec.Meta(ge=0)]


class Spent(msgspec.Struct, frozen=True, array_like=True):
    """How long a container has used a GPU, and how long it has waited for the GPU."""

    used: Nanoseconds = 0
    waited: Nanoseconds = 0


Used = dict[str, dict[str, Spent]]
"""The time of each container since the arbiter's start, by allocation directory and GPU UUID."""

T = TypeVar("T")


def encode_line(message: Assignment | Used) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def decode_line(line: bytes, kind: type[T]) -> T:
    """Decode a line. Raises LineError if the line is not a message of the type ``kind``."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise LineError(str(error)) from error
