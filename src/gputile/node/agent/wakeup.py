"""Wakes a loop early."""

import asyncio
import contextlib
from dataclasses import dataclass, field


class Wakeup:
    """A wish that a loop does its work soon; wishes that come before it does add up to one."""

    def __init__(self) -> None:
        self._wished = asyncio.Event()

    def wish(self) -> None:
        """Have the next wait end at once, or the present one."""
        self._wished.set()

    async def wait(self, within: float) -> None:
        """Return at the next wish, after ``within`` seconds without one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._wished.wait()
        self._wished.clear()


@dataclass(frozen=True, slots=True)
class Wakeups:
    """Wakes the agent's loops: ``compare`` the one that compares, ``publish`` the one that publishes on the node."""

    compare: Wakeup = field(default_factory=Wakeup)
    publish: Wakeup = field(default_factory=Wakeup)
