"""Holds why a pod with a reservation gets no GPUs now: the rule and what decided it.

It is worded where it is read.
"""

from dataclasses import dataclass
from enum import Enum

from gputile.api.wording import shortened
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import MIXED_GROUPS
from gputile.core.ledger.node_info import NodeInfo, ServingMode


class ReservationRule(Enum):
    """The rule by which a pod of a gang, or one that preempts others, waits, and the words for it."""

    NO_PLACE = "no place is kept for the pod yet"
    PLAN_INCOMPLETE = "{kept} of the {size} places of its plan are kept so far"
    NO_FIRST_POD = "its plan has no pod to begin with"
    OTHER_NODE = "GPUs of node {node} are kept for it"
    FIRST_NOT_BOUND = "pod {pod} of its gang is bound first, and is not yet"
    NODE_GONE = "{place} is gone"
    NOT_SERVED = "{place} does not serve it any more"
    NODE_CLOSED = "{place} takes no GPU pods at the moment"
    GPU_GONE = "{place} is gone or unhealthy"
    GPU_TAKEN = "{place} was taken by others"
    NOT_LEFT_YET = "{place} is not free yet: pods that it preempts have to leave first"
    OTHER_UNIT = "{place} has another memory unit now"


@dataclass(frozen=True, slots=True)
class ReservationRefusal:
    """Why a pod waits that goes by a reservation. ``kept`` of the ``size`` places of its plan are kept.

    ``node``, ``pod`` and the GPU of that ``index`` are those that the rule names. ``gang`` is "" where the refusal is
    about one node, and for a pod that preempts others.
    """

    rule: ReservationRule
    gang: str = ""
    kept: int = 0
    size: int = 0
    node: str = ""
    pod: str = ""
    index: int | None = None

    @property
    def text(self) -> str:
        gpu = "" if self.index is None else f"GPU {self.index} of "
        place = f"{gpu}node {self.node}, where {self.pod} has its place,"
        why = self.rule.value.format(kept=self.kept, size=self.size, node=self.node, pod=self.pod, place=place)
        return shortened(f"gang {self.gang}: {why}" if self.gang else why)


def lost_reservation(ledger: Ledger, reservation: Booking) -> ReservationRefusal | None:
    """Return why the GPUs of a reservation cannot be taken any more, None where they can."""
    row = ledger.row_of.get(reservation.node)
    node_info = ledger.node_info(row) if row is not None else None
    if row is None or node_info is None or reservation.allocation is None:
        return _lost(ReservationRule.NODE_GONE, reservation)
    mode = node_info.mode.value if node_info.mode else ""
    if mode != reservation.allocation.mode:
        return _lost(ReservationRule.NOT_SERVED, reservation)
    found = _lost_gpu(ledger, row, node_info, reservation)
    shared = node_info.mode is not None and node_info.mode.shared
    if found is None and shared and node_info.unit_mib != reservation.allocation.unit_mib:
        return _lost(ReservationRule.OTHER_UNIT, reservation)
    if found is None and ledger.node_arrays.serving_mode[row] in (ServingMode.NOTHING, ServingMode.BLOCKED):
        return _lost(ReservationRule.NODE_CLOSED, reservation)
    return found


def _lost(rule: ReservationRule, reservation: Booking, index: int | None = None) -> ReservationRefusal:
    return ReservationRefusal(rule, node=reservation.node, pod=reservation.key, index=index)


def _lost_gpu(ledger: Ledger, row: int, node_info: NodeInfo, reservation: Booking) -> ReservationRefusal | None:
    column_of = {gpu.uuid: i for i, gpu in enumerate(node_info.inventory.gpus)}
    alone = reservation.whole and not node_info.sliced  # else pods have the GPU in turns
    for share in reservation.gpus:
        i = column_of.get(share.uuid)
        if i is None or not ledger.node_arrays.usable[row, i]:
            return _lost(ReservationRule.GPU_GONE, reservation, share.index)
        if _is_overbooked(ledger, row, i, alone=alone, compute=share.percent > 0):
            return _lost(ReservationRule.GPU_TAKEN, reservation, share.index)
    return None


def _is_overbooked(ledger: Ledger, row: int, i: int, *, alone: bool, compute: bool) -> bool:
    """Return whether more is booked on a GPU than it has, the reservation included."""
    arrays = ledger.node_arrays
    return bool(
        (alone and arrays.pods[row, i] > 1)
        or arrays.used[row, i] > arrays.total[row, i]
        or (compute and arrays.percent[row, i] > 100)
        or arrays.pods[row, i] > arrays.max_pods_per_gpu[row]
        or (arrays.grouped[row] and arrays.group[row, i] == MIXED_GROUPS)
    )
