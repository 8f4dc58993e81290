"""Runs long computations in steps, between which the caller does other work, as an event loop must.

Between two steps nothing that the computation reads may change, unless it says otherwise. A step is short, and there
is a bound on how many of them there are.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
