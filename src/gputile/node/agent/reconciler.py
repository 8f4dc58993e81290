"""Runs the rounds of comparing: what pods hold, what the kubelet lists and what is booked.

The API server is waited for in the middle of a round, and the kubelet may ask for devices meanwhile. So each step is
decided on the state as it is then. What has not changed since it was found right is not gone through again: mostly
nothing happens on a node. A correction that fails turns up again the next time.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Set
from dataclasses import dataclass

from gputile.api.core import ObjectReference, unversioned
from gputile.api.reasons import EventReason
from gputile.kube.errors import Conflict, KubeError
from gputile.node.agent.advertise import Advertiser
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.cluster.api_server import NodeApi
from gputile.node.agent.device_ids import Listing
from gputile.node.agent.device_table import DeviceEvent
from gputile.node.agent.differences import (
    Annotations,
    Complain,
    Confirm,
    Correct,
    Correction,
    Release,
    differences,
)
from gputile.node.agent.files.records import Records
from gputile.node.agent.known_pods import KnownPod, answered_pod
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.mode_change import ModeChange
from gputile.node.agent.ownership import sync_with_listing
from gputile.node.agent.status.metrics import AgentMetrics

log = logging.getLogger(__name__)

LASTS_S = 5.0  # report only differences that persist this long: list and pods are read at different moments


@dataclass(frozen=True, slots=True)
class PodsListed:
    """The kubelet has listed who has which devices.

    ``epoch`` is when this kubelet was first seen, and ``settled`` says that it has had time to list its own pods again.
    ``started`` are the allocation directories that tell that their container was let start. ``synced`` says that the
    API server's pods are complete. ``now`` is on the monotonic clock, in seconds, ``now_ns`` is Unix time.
    """

    listing: Listing
    epoch: float
    settled: bool
    started: Set[str]
    synced: bool
    now: float
    now_ns: int


class Reconciliation:
    """Compares ``state`` again and again, and remembers what it found."""

    def __init__(self, state: AllocationState) -> None:
        self._state = state
        self._shared: tuple[object, ...] | None = None  # what the shares of time were last worked out from
        self._right: tuple[object, ...] | None = None  # what nothing was wrong with
        self._compared: tuple[object, ...] = ()
        self._before: tuple[object, ...] = ()  # the devices before they were compared
        self._since: dict[tuple[str, str], float] = {}  # when a complaint first came up, by UID and message
        self._saved: tuple[object, ...] | None = None  # the devices that were last written down, and announced
        self._differs = False

    def has_new_shares(self, *, mine: bool) -> bool:
        """Return whether the shares of time may differ from the last; ``mine``: no younger agent has the node."""
        present = (mine, self._state.labels, *self._known())
        shared, self._shared = self._shared, present
        return present != shared

    def listed(self, event: PodsListed) -> list[Correction] | None:
        """Return what differs by the kubelet's list; None where nothing has changed since it was found right."""
        state = self._state
        state.heard(event.listing, event.epoch, settled=event.settled)
        state.device_table.see_started(event.started)
        self._compared = (event.listing, event.synced, state.kubelet.settled, *self._known())
        if self._compared == self._right:
            return None
        self._before = tuple(state.device_table)
        if event.synced:
            sync_with_listing(state, event.listing, event.now_ns)
        found = differences(state, event.listing, event.now_ns, synced=event.synced)
        self._differs = bool(found)
        return self._lasting(found, event.now)

    def has_new_devices(self) -> bool:
        """Return whether pods have other devices than were last written down, once corrections are carried out."""
        held = tuple(self._state.device_table)
        if self._before == held == self._saved:
            return False
        self._saved = held
        return True

    def finish(self) -> None:
        """End a round that was carried out; the next one looks again for the pods of devices nobody has identified."""
        identified = all(pod_devices.identified for pod_devices in self._state.device_table)
        self._right = self._compared if not self._differs and identified else None

    def failed(self) -> None:
        """Have all of it done again: what was decided could not be executed."""
        self._shared = self._right = self._saved = None

    def _known(self) -> tuple[object, ...]:
        state = self._state
        pods = tuple(unversioned(known.pod) for known in state.pods.values())
        return state.node_config, state.configuration, tuple(state.device_table), pods

    def _lasting(self, found: Iterable[Correction], now: float) -> list[Correction]:
        """Leave out complaints of what may be over before anybody reads of it."""
        before, self._since = self._since, {}
        lasting: list[Correction] = []
        for each in found:
            if isinstance(each, Complain):
                key = each.pod.uid, each.message
                self._since[key] = before.get(key, now)
                if now - self._since[key] < LASTS_S:
                    continue
            lasting.append(each)
        return lasting


AT_ONCE = 4


class CorrectionWriter:
    """Writes corrections to the API server, a few at a time."""

    def __init__(self, cluster: NodeApi, metrics: AgentMetrics, allocation_state: AllocationState) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._allocation_state = allocation_state
        self._free = asyncio.Semaphore(AT_ONCE)

    async def carry_out(self, found: Iterable[Correction]) -> bool:
        """Carry out all corrections; return whether one failed for now, as its pod has changed."""
        again = any(await asyncio.gather(*(self._one(correction) for correction in found)))
        self._metrics.pods_with_devices.set(len(self._allocation_state.device_table))
        return again

    async def _one(self, correction: Correction) -> bool:
        try:
            await self._do(correction)
        except KubeError as error:
            return isinstance(error, Conflict)
        return False

    async def _do(self, correction: Correction) -> None:
        match correction:
            case Release(uid):
                if (pod_devices := self._allocation_state.device_table.get(uid)) is not None:
                    self._allocation_state.device_table.apply(DeviceEvent.POD_GONE, pod_devices)
            case Complain(pod, reason, message):
                self._cluster.record(_reference(pod), reason, message, "Warning")
            case Confirm(pod, annotations):
                await self._annotate(pod, annotations)
            case Correct(pod, annotations, booked, found):
                await self._annotate(pod, annotations)
                if pod.allocation is None:
                    self._metrics.placed.inc()
                    text = f"the pod was bound without an allocation and is on {found}"
                    self._cluster.record(_reference(pod), EventReason.ALLOCATION_RECORDED, text)
                elif booked != found:
                    self._metrics.corrections.inc()
                    text = f"the kubelet put the pod on {found}, booked was {booked}; the booking was corrected"
                    self._cluster.record(_reference(pod), EventReason.GPU_BOOKING_CORRECTED, text, "Warning")
                    log.warning("pod %s: %s", pod.key, text)

    async def _annotate(self, pod: KnownPod, annotations: Annotations) -> None:
        async with self._free:
            try:
                changed = await self._cluster.annotate(pod.pod, annotations)
            except KubeError as error:
                log.info("pod %s is not annotated: %s", pod.key, error)
                raise
        answered_pod(self._allocation_state.pods, changed, self._allocation_state.configuration)


def _reference(pod: KnownPod) -> ObjectReference:
    meta = pod.pod.metadata
    return ObjectReference(api_version="v1", kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid)


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
        advertiser: Advertiser,
    ) -> None:
        self._state = state
        self._kubelet = kubelet
        self._records = records
        self._store = records.store
        self._writer = writer
        self._mode = mode
        self._advertiser = advertiser
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
        self._share_time()
        listing = await self._kubelet.list(LIST_WITHIN_S)
        if not self._store.mine:
            return None
        await self._mode.renew(listing)
        if self._kubelet.registered.is_set():
            self._records.recover(self._state)
        if listing is None:
            return None
        epoch, settled, started = self._kubelet.state.epoch, self._kubelet.settled, self._store.started()
        return PodsListed(listing, epoch, settled, started, synced, time.monotonic(), time.time_ns())

    async def _put_right(self, found: list[Correction], listing: Listing, *, synced: bool) -> bool:
        """Carry out what differs, and what follows; return whether a pod has changed since."""
        conflict = await self._writer.carry_out(found)
        if self._reconciliation.has_new_devices():
            self._share_time()
            self._advertiser.save()
            self._advertiser.advertise()
            await self._mode.renew(listing)
        if synced:
            self._tidy()
        self._reconciliation.finish()
        return conflict

    def _share_time(self) -> None:
        if self._reconciliation.has_new_shares(mine=self._store.mine):
            self._advertiser.share_time()

    def _tidy(self) -> None:
        """Remove the allocation directories of pods that are gone; a container that has none cannot run."""
        alive = {pod.uid for pod in self._state.pods.values() if pod.alive}
        self._store.keep_only(self._state.directories(), alive)
        self._state.device_table.see_started(self._store.started())
