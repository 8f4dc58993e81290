"""Event loops for state machines of hypothesis: rules are plain functions, so no plugin awaits what they do."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def lasting_loop() -> asyncio.Runner:
    """Return a loop for a machine whose tasks live on from rule to rule; its ``teardown`` closes it."""
    return asyncio.Runner()


def awaited(work: Coroutine[object, object, T]) -> T:
    """Return what ``work`` returns, on a loop of its own, for a rule that leaves no task behind."""
    return asyncio.run(work)
