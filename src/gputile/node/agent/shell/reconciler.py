"""Runs the rounds of comparing: asks the kubelet, and executes what is decided."""

import time

from gputile.node.agent.decisions.events import EventTime, PodsListed
from gputile.node.agent.decisions.reconciliation.differences import Correction
from gputile.node.agent.decisions.reconciliation.rounds import Reconciliation
from gputile.node.agent.files.records import Records
from gputile.node.agent.kubelet.kubelet_link import KubeletLink
from gputile.node.agent.shell.corrections import CorrectionWriter
from gputile.node.agent.shell.executor import Executor
from gputile.node.agent.shell.mode_change import ModeChange
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.listing import Listing

LIST_WITHIN_S = 2.0


class Reconciler:
    """Compares, and puts right what differs."""

    def __init__(
        self,
        state: AllocationState,
        kubelet: KubeletLink,
        records: Records,
        writer: CorrectionWriter,
        mode: ModeChange,
        executor: Executor,
    ) -> None:
        self._state = state
        self._kubelet = kubelet
        self._records = records
        self._store = records.store
        self._writer = writer
        self._mode = mode
        self._executor = executor
        self._reconciliation = Reconciliation(state)

    async def round(self, *, synced: bool) -> bool:
        """Compare once, with the API server's pods complete if ``synced``; return whether another round should follow.

        Raises:
            KubeError: the API server does not say what is needed.
            OSError: a file cannot be written.
        """
        try:
            event = await self._listed(synced=synced)
            if event is None or (found := self._reconciliation.listed(event)) is None:
                return False
            return await self._put_right(found, event.listing, synced=synced)
        except BaseException:  # one that is cancelled, too, has not been executed
            self._reconciliation.failed()
            raise

    async def _listed(self, *, synced: bool) -> PodsListed | None:
        """Return what the kubelet lists, once the state has all that it is compared with; None where it lists nothing.

        The kubelet's checkpoint tells whose devices are that nobody knew, so that they are no difference.
        """
        await self._kubelet.until_quiet()
        self._executor.execute(self._reconciliation.share_time(mine=self._store.mine))
        listing = await self._kubelet.list(LIST_WITHIN_S)
        if not self._store.mine:
            return None
        await self._mode.renew(listing)
        if self._kubelet.registered.is_set():
            self._records.recover(self._state)
        if listing is None:
            return None
        epoch, settled, started = self._kubelet.state.epoch, self._kubelet.settled, self._store.started()
        return PodsListed(listing, epoch, settled, started, synced, EventTime(time.monotonic(), time.time_ns()))

    async def _put_right(self, found: list[Correction], listing: Listing, *, synced: bool) -> bool:
        """Carry out what differs, and what follows; return whether a pod has changed since."""
        conflict = await self._writer.carry_out(found)
        followed = self._reconciliation.corrected(mine=self._store.mine)
        self._executor.execute(followed)
        if followed:
            await self._mode.renew(listing)
        self._executor.execute(self._reconciliation.tidied(synced=synced))
        return conflict
