"""Recomputes prices while pods arrive, in a separate process, so that no decision waits.

A cutting-stock problem is solved (``placement.prices``), and all nodes are weighed by its prices
(``placement.packing_scores``). This takes longer than a decision may. The process is started once there are nodes, and
gets a copy of the ledger's arrays. If it fails, the previous prices stay in force. Until there are prices, full nodes
come first.
"""

import asyncio
import logging
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from gputile.core.ledger.node_arrays import NodeArrays
from gputile.core.placement.packing_scores import PackingState, build
from gputile.core.placement.prices import Demand, prices
from gputile.core.scheduling.placement_engine import PlacementEngine

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
STALE_AFTER_S = 60.0  # scarcity may have changed by then


def priced(demand: Demand, arrays: NodeArrays) -> PackingState:
    """Return the prices for ``demand`` on a snapshot of the cluster; see ``packing_scores.build``."""
    return build(arrays, prices(demand))


class PriceLearning:
    """Keeps the prices of one placement engine up to date."""

    def __init__(self, engine: PlacementEngine, *, look_every: float = LOOK_EVERY_S) -> None:
        self._engine = engine
        self._look_every = look_every
        self._pool: ProcessPoolExecutor | None = None

    async def run(self) -> None:
        """Recompute prices when enough pods have arrived, or the prices are stale; return at once if none are used."""
        demand = self._engine.demand
        if demand is None:
            return
        loop = asyncio.get_running_loop()
        learnt = float("-inf")
        try:
            while not self._engine.ledger.row_of:  # noqa: ASYNC110 - the ledger signals no change
                await asyncio.sleep(self._look_every)
            for _ in demand.catch_up():
                await asyncio.sleep(0)
            while True:
                if not self._engine.ledger.row_of or not (demand.due() or loop.time() - learnt > STALE_AFTER_S):
                    await asyncio.sleep(self._look_every)
                    continue
                learnt = loop.time()
                asked, arrays = demand.demand(), self._engine.ledger.node_arrays.copy()
                try:
                    state = await loop.run_in_executor(self._workers(), priced, asked, arrays)
                    self._engine.packing_state = state
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
