"""Computes how long to wait before the next attempt."""

import random
from collections.abc import Callable
from dataclasses import dataclass


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
