"""One round of comparing: what pods hold, what the kubelet lists and what the ledger says, brought in step."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from gputile.api.core import unversioned
from gputile.node.agent.advertise.advertised_state import AdvertisedState
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.handler import AllocationHandler
from gputile.node.agent.checkpoint.records import Records
from gputile.node.agent.checkpoint.store import Store
from gputile.node.agent.gateway_link import KubeletLink
from gputile.node.agent.gpu_time.arbiter_process import ArbiterProcess
from gputile.node.agent.reconcile.corrections import CorrectionWriter
from gputile.node.agent.reconcile.listing_sync import sync_with_listing
from gputile.node.agent.reconcile.reconciler import Complain, Correction, reconcile
from gputile.node.agent.status.metrics import AgentMetrics

log = logging.getLogger(__name__)

QUIET_S, LONGEST_BUSY_S = 0.2, 2.0
LIST_WITHIN_S = 2.0
LASTS_S = 5.0  # what is complained of has been so for as long: the list and the pods are not of one moment


class DriftCheck:
    """Compares, and puts right what differs. ``renew`` brings the offer up to date.

    What has not changed since it was found right is not gone through again: mostly nothing happens on a node.
    """

    def __init__(
        self,
        admission: AllocationState,
        kubelet: KubeletLink,
        desk: AllocationHandler,
        store: Store,
        records: Records,
        corrector: CorrectionWriter,
        turns: ArbiterProcess,
        offering: AdvertisedState,
        metrics: AgentMetrics,
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
        self._shared: tuple[object, ...] | None = None  # what the shares of time were last worked out from
        self._right: tuple[object, ...] | None = None  # what nothing was wrong with
        self._since: dict[tuple[str, str], float] = {}  # when a complaint first came up, by UID and message
        self._saved: tuple[object, ...] | None = None  # the holdings that were last written down, and announced

    async def round(self, *, synced: bool) -> bool:
        """Compare once, with the API server's pods complete if ``synced``; return whether another round should follow.

        Raises:
            KubeError: the API server does not say what is needed.
            OSError: a file cannot be written.
        """
        await self._answered()
        self._share_time()
        listing = await self._kubelet.list(LIST_WITHIN_S)
        if not self._store.mine:
            return False
        await self._renew()
        if self._kubelet.registered.is_set():
            self._records.recover(self._admission)
        if listing is None:
            return False
        admission, holdings = self._admission, self._admission.holdings
        holdings.started = self._store.started()
        before = tuple(holdings)
        settled = self._kubelet.settled
        compared = (listing, synced, settled, *self._known())
        if compared == self._right:
            return False
        if synced:
            sync_with_listing(listing, admission.pods, holdings, admission.setup, time.time_ns())
        pods, now_ns = admission.pods.values(), time.time_ns()
        found = reconcile(pods, holdings, listing, admission.setup, now_ns, synced=synced, settled=settled)
        conflict = await self._corrector.carry_out(self._lasting(found))
        held = tuple(holdings)
        if not before == held == self._saved:
            self._saved = None  # what fails now is done the next time
            self._share_time()
            self._offering.save()
            self._offering.announce()
            self._saved = held
            await self._renew()
        self._correct_limits()
        if synced:
            self._store.keep_only(admission.directories())
            holdings.started = self._store.started()
        self._metrics.holdings.set(len(holdings))
        # Who is not identified is looked for until it has been long enough.
        self._right = compared if not found and all(holding.identified for holding in holdings) else None
        return conflict

    def _correct_limits(self) -> None:
        """Put right the limits of containers that started before their pods were known."""
        for start in self._admission.let_start():
            if self._store.correct_limits(start.directory, start.limits):
                limits = start.limits
                log.warning("the limits of %s/%s/%s are corrected", limits.namespace, limits.pod, limits.container)

    def _lasting(self, found: Iterable[Correction]) -> list[Correction]:
        """Leave out complaints of what may be over before anybody reads of it."""
        now, before, self._since = time.monotonic(), self._since, {}
        lasting: list[Correction] = []
        for each in found:
            if isinstance(each, Complain):
                key = each.pod.uid, each.message
                self._since[key] = before.get(key, now)
                if now - self._since[key] < LASTS_S:
                    continue
            lasting.append(each)
        return lasting

    def _known(self) -> tuple[object, ...]:
        admission = self._admission
        pods = tuple(unversioned(known.pod) for known in admission.pods.values())
        return admission.setup, admission.configuration, tuple(admission.holdings), pods

    def _share_time(self) -> None:
        """Bring the shares of time up to date."""
        present = (self._store.mine, self._admission.labels, *self._known())
        if present != self._shared:
            self._turns.refresh()
            self._shared = present

    async def _answered(self) -> None:
        """Wait until the kubelet has asked nothing for a moment: it waits for answers, and comparing takes its time."""
        for _ in range(int(LONGEST_BUSY_S / QUIET_S)):
            quiet = time.monotonic() - self._desk.asked
            if quiet >= QUIET_S:
                return
            await asyncio.sleep(QUIET_S - quiet)
