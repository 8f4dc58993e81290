"""Encodes the arbiter's message to the agent: how long each container has had each GPU."""

from typing import Annotated

import msgspec

Nanoseconds = Annotated[int, msgspec.Meta(ge=0)]


class Spent(msgspec.Struct, frozen=True, array_like=True):
    """For how long a container had a GPU in its turns, and for how long it waited for them."""

    used: Nanoseconds = 0
    waited: Nanoseconds = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.used + other.used, self.waited + other.waited)

    def at_least(self, other: "Spent") -> "Spent":
        """Return the larger one of each time."""
        return Spent(max(self.used, other.used), max(self.waited, other.waited))


Used = dict[str, dict[str, Spent]]
"""What was spent by the allocation's directory and the GPU's UUID, since the arbiter's start."""

_NOTHING = Spent()


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
    """What was spent altogether, over all arbiters that there were: never less than before."""

    def __init__(self) -> None:
        self._earlier: dict[tuple[str, str], Spent] = {}
        self._now: dict[tuple[str, str], Spent] = {}

    def begin(self) -> None:
        """Take note that another arbiter has started, which counts from 0."""
        self._earlier, self._now = self.spent(), {}

    def take(self, used: Used) -> None:
        """Take in what an arbiter says; containers that it no longer names are forgotten."""
        found = {(name, uuid): spent for name, gpus in used.items() for uuid, spent in gpus.items()}
        # A turn is charged as it goes, and what was too much given back when it ends.
        self._now = {key: spent.at_least(self._now.get(key, _NOTHING)) for key, spent in found.items()}
        self._earlier = {key: spent for key, spent in self._earlier.items() if key in found}

    def spent(self) -> dict[tuple[str, str], Spent]:
        """Return what each container has spent on each GPU, by directory and UUID."""
        return {
            key: self._earlier.get(key, _NOTHING) + self._now.get(key, _NOTHING)
            for key in self._earlier.keys() | self._now.keys()
        }
