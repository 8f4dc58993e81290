"""Encodes the agent's message to the arbiter: all containers and their shares as one line of JSON."""

from typing import Final

import msgspec

from gputile.api.gpu_time import MOST_WEIGHT
from gputile.node.arbiter.shares import WHOLE, Share

DEFAULT_QUANTUM_MS: Final = 30
DEFAULT_LONGEST_WAIT_MS: Final = 1000


class AssignmentError(ValueError):
    """The line is not an assignment."""


class GpuClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A container's share of one GPU; ``guarantee`` and ``ceiling`` in millionths."""

    uuid: str
    weight: int = 1
    guarantee: int = msgspec.field(default=0, name="floor")
    ceiling: int = WHOLE
    priority: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.weight <= MOST_WEIGHT:
            raise AssignmentError(f"weight {self.weight}")
        if not (0 <= self.guarantee <= WHOLE and 1 <= self.ceiling <= WHOLE):
            raise AssignmentError(f"floor {self.guarantee}, ceiling {self.ceiling}")

    @property
    def share(self) -> Share:
        """The share, for the GPU's turns."""
        return Share(self.weight, self.guarantee, self.ceiling, self.priority)


class AssignedContainer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One container: the directory with its socket, and its GPUs."""

    directory: str
    gpus: tuple[GpuClaim, ...] = msgspec.field(name="cards")


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that the arbiter serves."""

    allocations: tuple[AssignedContainer, ...] = ()
    quantum_ms: int = DEFAULT_QUANTUM_MS
    longest_wait_ms: int = DEFAULT_LONGEST_WAIT_MS


def encode_assignment(assignment: Assignment) -> bytes:
    """Return the line, with its end."""
    return msgspec.json.encode(assignment) + b"\n"


def decode_assignment(line: bytes) -> Assignment:
    """Return the assignment in a line.

    Raises:
        AssignmentError: it is not one.
    """
    try:
        return msgspec.json.decode(line, type=Assignment)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise AssignmentError(str(error)) from error
