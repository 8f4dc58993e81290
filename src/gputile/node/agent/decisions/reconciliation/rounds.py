"""Decides the rounds of comparing what pods hold, what the kubelet lists and what is booked.

A round is three events, for the API server is waited for in between, and the kubelet may ask for devices meanwhile.
Each is decided on the state as it is then: ``listed`` says what differs, ``corrected`` what follows where devices have
changed, and ``tidied`` which files are nobody's.

What has not changed since it was found right is not gone through again: mostly nothing happens on a node.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from gputile.api.core import unversioned
from gputile.node.agent.decisions.advertising.advertise import advertise
from gputile.node.agent.decisions.instructions import (
    Instruction,
    RemoveOthers,
    SaveCheckpoint,
    ShareTime,
)
from gputile.node.agent.decisions.ownership import sync_with_listing
from gputile.node.agent.decisions.reconciliation.differences import Complain, Correction, differences
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_ids import Listing

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

    def share_time(self, *, mine: bool) -> list[Instruction]:
        """Return what brings the shares of time up to date; ``mine`` says that no younger agent has the node."""
        present = (mine, self._state.labels, *self._known())
        shared, self._shared = self._shared, present
        return [ShareTime()] if present != shared else []

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

    def corrected(self, *, mine: bool) -> list[Instruction]:
        """Return what follows on corrections: new devices get their time, are written down, and are told."""
        held = tuple(self._state.device_table)
        if self._before == held == self._saved:
            return []
        self._saved = held
        return [*self.share_time(mine=mine), SaveCheckpoint(), advertise(self._state)]

    def tidied(self, *, synced: bool) -> list[Instruction]:
        """Return what puts files right once the API server's pods are complete (``synced``)."""
        state, done = self._state, list[Instruction]()
        if synced:
            alive = {pod.uid for pod in state.pods.values() if pod.alive}
            done.append(RemoveOthers(state.directories(), alive))
        # The next round looks again for the pods of devices that nobody has identified.
        identified = all(pod_devices.identified for pod_devices in state.device_table)
        self._right = self._compared if not self._differs and identified else None
        return done

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
