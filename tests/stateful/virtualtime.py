"""An event loop whose time passes when it is told to: minutes of a service take milliseconds, in one order."""

import asyncio
import selectors
from collections.abc import Callable


class _NoWaiting(selectors.SelectSelector):
    """Tells instead of waiting; ``idle`` gets the seconds until the next timer, None where there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: Callable[[float | None], None] = lambda _: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.idle(timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs in ``pass_time`` only. Nothing on it may wait for threads, processes or sockets."""

    def __init__(self) -> None:
        self._now = self._until = 0.0
        selector = _NoWaiting()
        selector.idle = self._idle
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def _idle(self, seconds: float | None) -> None:
        due = self._now + seconds if seconds is not None else self._until
        if seconds is not None and due <= self._until:
            self._now = due
        else:
            self._now = self._until
            self.stop()

    def pass_time(self, seconds: float = 0.0) -> None:
        """Do all that is due within so many seconds, and what it leads to."""
        self._until = self._now + seconds
        self.run_forever()

    def end(self) -> None:
        """Cancel all tasks, let them end, and close the loop."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.pass_time()
        self.close()
