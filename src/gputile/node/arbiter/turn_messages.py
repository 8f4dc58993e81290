"""Describes a turn on a GPU, and what processes are told of it."""

from dataclasses import dataclass, field

from gputile.node.arbiter.accounts import Account


@dataclass(frozen=True, slots=True)
class Grant:
    """``member`` may submit work for ``length``; 0: until it is told otherwise."""

    member: int
    turn: int
    length: int


@dataclass(frozen=True, slots=True)
class Limit:
    """``member`` may submit work for ``remaining`` more, then gives the turn back."""

    member: int
    turn: int
    remaining: int


TimesliceMessage = Grant | Limit
"""What a process is told of its turn."""


@dataclass(slots=True)
class Turn:
    """A turn of an account on one GPU; times in nanoseconds."""

    number: int
    account: Account
    since: int
    end: int | None  # None: until somebody else wants the GPU
    charged_until: int
    sign: int  # when a holder was last heard of
    holders: set[int] = field(default_factory=set)
    used: int = 0  # the most that a member that has given the turn back saw the GPU work
    contended: int = 0  # for how long others waited meanwhile
    unbounded: bool = False  # it began without an end: work was submitted far ahead, while nobody else was about
    settled: int = 0  # how long the GPU worked for those who had given it back before nobody was left
    kept_until: int = 0  # nobody has it at the moment, and it stays the account's until then
