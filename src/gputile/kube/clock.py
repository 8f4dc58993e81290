"""Provides the time of day, a monotonic clock and sleep, which tests replace."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the time of day, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """``now`` is the time of day with its zone; ``monotonic`` and ``sleep`` count in seconds."""

    now: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def unix_ns(self) -> int:
        """Return the time of day in nanoseconds since the epoch; it is exact to a microsecond."""
        return round(self.now().timestamp() * 1e6) * 1000


SYSTEM_CLOCK = Clock()
