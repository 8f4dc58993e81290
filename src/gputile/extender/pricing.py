"""Learns prices anew while pods arrive, in a process of its own: no decision waits for it.

A cutting-stock problem is solved each time (``placement.prices``), which takes longer than a decision may. The
process is started when it is first needed. While it is in trouble the prices of before stay.
"""

import asyncio
import logging
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from gputile.placement.prices import prices
from gputile.scheduling.placer import Placer

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
STALE_AFTER_S = 60.0  # what was scarce then may not be any more


class Pricing:
    """Keeps the prices of one placer up to date."""

    def __init__(self, placer: Placer, *, look_every: float = LOOK_EVERY_S) -> None:
        self._placer = placer
        self._look_every = look_every
        self._pool: ProcessPoolExecutor | None = None

    async def run(self) -> None:
        """Learn whenever enough pods came, until cancelled; return at once where nothing is to be learnt."""
        demand = self._placer.demand
        if demand is None:
            return
        loop = asyncio.get_running_loop()
        learnt = loop.time()
        try:
            while True:
                await asyncio.sleep(self._look_every)
                if not self._placer.ledger.row_of or not (demand.due() or loop.time() - learnt > STALE_AFTER_S):
                    continue
                learnt = loop.time()
                try:
                    self._placer.reprice(await loop.run_in_executor(self._workers(), prices, demand.demand()))
                except (BrokenProcessPool, OSError) as error:
                    log.warning("prices are not learnt anew: %s", error)
                    self._close()
        finally:
            self._close()

    def _workers(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        return self._pool

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
