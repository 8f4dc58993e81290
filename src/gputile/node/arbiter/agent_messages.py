"""Encodes the messages between agent and arbiter, each as one line of JSON.

The agent sends all containers with their shares; the arbiter reports how long each container has held each GPU.
"""

from typing import Annotated, Final, TypeVar

import msgspec

from gputile.api.quantity import MOST_WEIGHT
from gputile.node.arbiter.accounts import WHOLE, Share

DEFAULT_QUANTUM_MS: Final = 30
DEFAULT_LONGEST_WAIT_MS: Final = 1000


class LineError(ValueError):
    """The line is not a valid message."""


class GpuClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A container's share of one GPU; ``guarantee`` and ``ceiling`` are millionths of its time."""

    uuid: str
    weight: int = 1
    guarantee: int = 0
    ceiling: int = WHOLE
    priority: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.weight <= MOST_WEIGHT:
            raise LineError(f"weight {self.weight}")
        if not (0 <= self.guarantee <= WHOLE and 1 <= self.ceiling <= WHOLE):
            raise LineError(f"guarantee {self.guarantee}, ceiling {self.ceiling}")

    @property
    def share(self) -> Share:
        return Share(self.weight, self.guarantee, self.ceiling, self.priority)


class AssignedContainer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A container: its allocation directory, which has its socket, and its shares of GPUs."""

    directory: str
    gpus: tuple[GpuClaim, ...]


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All containers that the arbiter serves, and its settings."""

    allocations: tuple[AssignedContainer, ...] = ()
    quantum_ms: int = DEFAULT_QUANTUM_MS
    longest_wait_ms: int = DEFAULT_LONGEST_WAIT_MS


Nanoseconds = Annotated[int, msgspec.Meta(ge=0)]


class Spent(msgspec.Struct, frozen=True, array_like=True):
    """How long a container has held a GPU, and how long it has waited for it."""

    used: Nanoseconds = 0
    waited: Nanoseconds = 0


Used = dict[str, dict[str, Spent]]
"""The time spent since the arbiter's start, by allocation directory and GPU UUID."""

T = TypeVar("T")


def encode_line(message: Assignment | Used) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def decode_line(line: bytes, kind: type[T]) -> T:
    """Decode a line.

    Raises:
        LineError: it is not a message of this kind.
    """
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise LineError(str(error)) from error
