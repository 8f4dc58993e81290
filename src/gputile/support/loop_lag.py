"""Measures how late a service's event loop runs what is due.

While one handler holds it, everything else waits.
"""

import asyncio
from typing import NoReturn

from prometheus_client import Histogram

LOOK_EVERY_S = 0.25
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LoopLag:
    """Keeps ``gputile_<component>_event_loop_lag_seconds``, a histogram, for as long as ``run`` runs.

    ``seconds`` is to be registered where the component's metrics are.
    """

    def __init__(self, component: str, *, look_every: float = LOOK_EVERY_S) -> None:
        self._look_every = look_every
        self.seconds = Histogram(
            f"gputile_{component}_event_loop_lag_seconds",
            "How late a timer of the event loop ran, seconds; above 0.05 something holds up all answers.",
            buckets=_SECONDS,
            registry=None,
        )

    async def run(self) -> NoReturn:
        """Look every so many seconds, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._look_every
            await asyncio.sleep(self._look_every)
            self.seconds.observe(max(0.0, loop.time() - due))
