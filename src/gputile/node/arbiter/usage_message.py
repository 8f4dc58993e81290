"""What the arbiter tells the agent: how long each container has had each GPU, as one line of JSON, each time anew."""

from typing import Annotated

import msgspec

Used = dict[str, dict[str, Annotated[int, msgspec.Meta(ge=0)]]]
"""Nanoseconds by the allocation's directory and the GPU's UUID, since the arbiter's start."""


class UsageError(ValueError):
    """The line does not say what was used."""


def encode_usage(used: Used) -> bytes:
    """Return the line, with its end."""
    return msgspec.json.encode(used) + b"\n"


def decode_usage(line: bytes) -> Used:
    """Return what was used.

    Raises:
        UsageError: the line says something else.
    """
    try:
        return msgspec.json.decode(line, type=Used)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(str(error)) from error


class Totals:
    """What was used altogether, over all arbiters that there were: never less than before."""

    def __init__(self) -> None:
        self._earlier: dict[tuple[str, str], int] = {}
        self._now: dict[tuple[str, str], int] = {}

    def begin(self) -> None:
        """Take note that another arbiter has started, which counts from 0."""
        self._earlier, self._now = self.nanoseconds(), {}

    def take(self, used: Used) -> None:
        """Take in what an arbiter says; containers that it no longer names are forgotten."""
        found = {(name, uuid): spent for name, gpus in used.items() for uuid, spent in gpus.items()}
        # A turn is charged as it goes, and what was too much given back when it ends.
        self._now = {key: max(spent, self._now.get(key, 0)) for key, spent in found.items()}
        self._earlier = {key: spent for key, spent in self._earlier.items() if key in found}

    def nanoseconds(self) -> dict[tuple[str, str], int]:
        """Return the nanoseconds of each container on each GPU, by directory and UUID."""
        return {
            key: self._earlier.get(key, 0) + self._now.get(key, 0) for key in self._earlier.keys() | self._now.keys()
        }
