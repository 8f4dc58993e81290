"""Defines the 32-byte messages of arbiter and library, see docs/reference/arbiter-protocol.md."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from gputile.node.native_layouts import ARBITER_MESSAGE, ARBITER_VERSION, MOST_GPUS

VERSION: Final = ARBITER_VERSION
SIZE: Final = ARBITER_MESSAGE.size
SOCKET: Final = "time.sock"
"""The name of the socket in an allocation directory."""
SHARE_FILE: Final = "share"
"""The name of the file in the same directory that sets the shares while no arbiter runs."""

_LAYOUT: Final = ARBITER_MESSAGE.struct


class MessageKind(IntEnum):
    """The kind of a message: kinds up to 64 are sent by processes, the others by the arbiter."""

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
    """The bytes are not a valid message."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. The meaning of ``a`` and ``b`` depends on the kind; times are nanoseconds."""

    kind: MessageKind
    gpu: int = 0
    turn: int = 0
    a: int = 0
    b: int = 0

    def encode(self) -> bytes:
        version = 0 if self.kind in _WITHOUT_VERSION else VERSION
        return _LAYOUT.pack(self.kind, version, self.gpu, self.turn, self.a, self.b, 0)


def decode(data: bytes) -> Message:
    """Decode a message of version 1.

    Raises:
        ProtocolError: the bytes are not such a message.
    """
    if len(data) != SIZE:
        raise ProtocolError(f"{len(data)} bytes")
    number, version, gpu, turn, a, b, _ = _LAYOUT.unpack(data)
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
    """Return the fields ``a`` and ``b`` of the message ``GPU`` for a UUID such as ``GPU-...`` or ``MIG-...``.

    Raises:
        ProtocolError: the UUID is invalid.
    """
    digits = uuid.partition("-")[2].replace("-", "")
    try:
        content = bytes.fromhex(digits)
    except ValueError as error:
        raise ProtocolError(f"{uuid!r} is not the UUID of a GPU") from error
    if len(content) != 16:
        raise ProtocolError(f"{uuid!r} is not the UUID of a GPU")
    return int.from_bytes(content[:8], "little"), int.from_bytes(content[8:], "little")
