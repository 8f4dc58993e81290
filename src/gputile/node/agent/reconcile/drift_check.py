"""One round of comparing: what pods hold, what the kubelet lists and what the ledger says, brought in step."""

import logging
import time
from collections.abc import Iterable

from gputile.api.core import unversioned
from gputile.node.agent.advertise.mode_change import ModeChange
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.container_start import limits_of_started
from gputile.node.agent.checkpoint.records import Records
from gputile.node.agent.gpu_time.arbiter_process import ArbiterProcess
from gputile.node.agent.kubelet_link import KubeletLink
from gputile.node.agent.reconcile.corrections import CorrectionWriter
from gputile.node.agent.reconcile.listing import Listing
from gputile.node.agent.reconcile.listing_sync import sync_with_listing
from gputile.node.agent.reconcile.reconciler import Complain, Correction, reconcile

log = logging.getLogger(__name__)

LIST_WITHIN_S = 2.0
LASTS_S = 5.0  # report only differences that persist this long: list and pods are read at different moments


class DriftCheck:
    """Compares, and puts right what differs.

    What has not changed since it was found right is not gone through again: mostly nothing happens on a node.
    """

    def __init__(
        self,
        state: AllocationState,
        kubelet: KubeletLink,
        records: Records,
        writer: CorrectionWriter,
        mode: ModeChange,
        arbiter: ArbiterProcess,
    ) -> None:
        self._state = state
        self._kubelet = kubelet
        self._records = records
        self._store = records.store
        self._writer = writer
        self._mode = mode
        self._arbiter = arbiter
        self._shared: tuple[object, ...] | None = None  # what the shares of time were last worked out from
        self._right: tuple[object, ...] | None = None  # what nothing was wrong with
        self._since: dict[tuple[str, str], float] = {}  # when a complaint first came up, by UID and message
        self._saved: tuple[object, ...] | None = None  # the devices that were last written down, and announced

    async def round(self, *, synced: bool) -> bool:
        """Compare once, with the API server's pods complete if ``synced``; return whether another round should follow.

        The order matters: a mode is changed on what the kubelet has just said, the kubelet's checkpoint is read once
        it has taken the plugins, and only then is anything called a difference.

        Raises:
            KubeError: the API server does not say what is needed.
            OSError: a file cannot be written.
        """
        await self._kubelet.until_quiet()
        self._share_time()
        listing = await self._kubelet.list(LIST_WITHIN_S)
        if not self._store.mine:
            return False
        await self._mode.renew()
        if self._kubelet.registered.is_set():
            self._records.recover(self._state)
        if listing is None:
            return False
        self._state.heard(listing, self._kubelet.state.epoch, settled=self._kubelet.settled)
        self._state.device_table.started = self._store.started()
        compared = (listing, synced, self._state.settled, *self._known())
        if compared == self._right:
            return False
        found, conflict = await self._compare(listing, synced=synced)
        self._correct_limits()
        if synced:
            alive = {pod.uid for pod in self._state.pods.values() if pod.alive}
            self._store.keep_only(self._state.directories(), alive)
            self._state.device_table.started = self._store.started()
        # The next round looks again for the pods of devices that nobody has identified.
        identified = all(pod_devices.identified for pod_devices in self._state.device_table)
        self._right = compared if not found and identified else None
        return conflict

    async def _compare(self, listing: Listing, *, synced: bool) -> tuple[list[Correction], bool]:
        """Carry out what differs; return it, and whether a pod has changed since."""
        state, before, now_ns = self._state, tuple(self._state.device_table), time.time_ns()
        if synced:
            sync_with_listing(state, listing, now_ns)
        found = reconcile(state, listing, now_ns, synced=synced)
        conflict = await self._writer.carry_out(self._lasting(found))
        held = tuple(state.device_table)
        if not before == held == self._saved:
            self._saved = None  # what fails now is done the next time
            self._share_time()
            self._mode.advertised.save()
            self._mode.advertised.announce()
            self._saved = held
            await self._mode.renew()
        return found, conflict

    def _correct_limits(self) -> None:
        """Put right the limits of containers that started before their pods were known."""
        for start in limits_of_started(self._state):
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
        state = self._state
        pods = tuple(unversioned(known.pod) for known in state.pods.values())
        return state.node_config, state.configuration, tuple(state.device_table), pods

    def _share_time(self) -> None:
        """Bring the shares of time up to date."""
        present = (self._store.mine, self._state.labels, *self._known())
        if present != self._shared:
            self._arbiter.refresh()
            self._shared = present
