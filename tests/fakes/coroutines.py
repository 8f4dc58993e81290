"""Runs coroutines that wait for nothing but their turn."""

from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def at_once(work: Coroutine[None, None, T]) -> T:
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
