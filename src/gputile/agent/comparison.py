"""One round of comparing: what pods hold, what the kubelet lists and what the ledger says, brought in step."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from gputile.agent.admission import Admission
from gputile.agent.adopt import adopt
from gputile.agent.corrections import Corrector
from gputile.agent.desk import AdmissionDesk
from gputile.agent.kubelet import Kubelet
from gputile.agent.metrics import Metrics
from gputile.agent.offering import Offering
from gputile.agent.reconciler import reconcile
from gputile.agent.records import Records
from gputile.agent.store import Store
from gputile.agent.turnkeeping import TurnKeeping

QUIET_S, LONGEST_BUSY_S = 0.2, 2.0
LIST_WITHIN_S = 2.0
SETTLED_AFTER_S = 10.0  # a kubelet that has just started lists its pods one after the other


class Comparison:
    """Compares, and puts right what differs. ``renew`` brings the offer up to date."""

    def __init__(
        self,
        admission: Admission,
        kubelet: Kubelet,
        desk: AdmissionDesk,
        store: Store,
        records: Records,
        corrector: Corrector,
        turns: TurnKeeping,
        offering: Offering,
        metrics: Metrics,
        renew: Callable[[], Awaitable[None]],
    ) -> None:
        self._admission = admission
        self._kubelet = kubelet
        self._desk = desk
        self._store = store
        self._records = records
        self._corrector = corrector
        self._turns = turns
        self._offering = offering
        self._metrics = metrics
        self._renew = renew

    async def round(self, *, synced: bool) -> bool:
        """Compare once, with the API server's pods complete if ``synced``; return whether another round should follow.

        Raises:
            KubeError: the API server does not say what is needed.
            OSError: a file cannot be written.
        """
        await self._answered()
        self._turns.refresh()
        listing = await self._kubelet.list(LIST_WITHIN_S)
        if not self._store.mine:
            return False
        await self._renew()
        if self._kubelet.registered.is_set():
            self._records.recover(self._admission)
        if listing is None:
            return False
        admission, holdings = self._admission, self._admission.holdings
        before = list(holdings)
        settled = time.monotonic() - self._kubelet.state.epoch > SETTLED_AFTER_S
        if synced:
            adopt(listing, admission.pods, holdings, admission.setup, time.time_ns())
        pods, now_ns = admission.pods.values(), time.time_ns()
        found = reconcile(pods, holdings, listing, admission.setup, now_ns, synced=synced, settled=settled)
        conflict = await self._corrector.carry_out(found)
        if list(holdings) != before:
            self._turns.refresh()
            self._offering.save()
            self._offering.announce()
            await self._renew()
        self._store.keep_only(part.directory for holding in holdings for part in holding.parts)
        self._metrics.holdings.set(len(holdings))
        return conflict

    async def _answered(self) -> None:
        """Wait until the kubelet has asked nothing for a moment: it waits for answers, and comparing takes its time."""
        for _ in range(int(LONGEST_BUSY_S / QUIET_S)):
            quiet = time.monotonic() - self._desk.asked
            if quiet >= QUIET_S:
                return
            await asyncio.sleep(QUIET_S - quiet)
