"""Keeps the latest changes of the page, encoded once: each viewer reads on from where it is.

A viewer holds a number and nothing else, so one that stops reading costs nothing; one that fell behind further than the
log reaches takes the whole page anew.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from gputile.api.quantity import MIB
from gputile.tools.web.page.records import Difference

MOST_CHANGES: Final = 512
MOST_BYTES: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class Change:
    """A change and its number, encoded for who sees everything; ``difference`` is None where it is about no pods."""

    revision: int
    encoded: bytes
    difference: Difference | None = None


class ChangeLog:
    """Changes by their numbers, bounded in number and in bytes."""

    def __init__(self, most: int = MOST_CHANGES, most_bytes: int = MOST_BYTES) -> None:
        self.revision = 0
        self._most = most
        self._most_bytes = most_bytes
        self._kept: deque[Change] = deque()
        self._bytes = 0
        self._news = asyncio.Event()

    def append(self, encoded: bytes, difference: Difference | None = None) -> None:
        """Add a change, and wake those who wait for it."""
        self.revision += 1
        self._kept.append(Change(self.revision, encoded, difference))
        self._bytes += len(encoded)
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._bytes -= len(self._kept.popleft().encoded)
        self._news.set()
        self._news = asyncio.Event()

    def since(self, revision: int) -> list[Change] | None:
        """Return the changes after ``revision``, None where the log does not reach back so far, or not ahead."""
        behind = self.revision - revision
        if behind < 0 or behind > len(self._kept):
            return None
        return [self._kept[number] for number in range(len(self._kept) - behind, len(self._kept))]

    async def news(self, revision: int) -> None:
        """Return as soon as there is a change after ``revision``."""
        while self.revision <= revision:
            await self._news.wait()
