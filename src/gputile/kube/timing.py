"""Provides time, sleep and back-off, which tests replace."""

import asyncio
import random
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


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays from ``first`` to ``longest`` seconds, each shortened at random by up to a half.

    The jitter keeps replicas and agents that lost the API server together from returning to it together.
    """

    first: float = 1.0
    longest: float = 30.0
    uniform: Callable[[float, float], float] = random.SystemRandom().uniform

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after ``failures`` failures in a row, the first being 0."""
        full = min(self.longest, self.first * 2.0 ** min(failures, 32))
        return self.uniform(full / 2, full)
