"""Why a pod of a gang gets no cards now: the rule and what decided it, worded only where somebody reads it."""

from dataclasses import dataclass
from enum import Enum, auto

from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import MIXED_GROUPS
from gputile.core.ledger.node_info import NodeInfo, ServingMode


class PlaceLoss(Enum):
    """What became of a place; the value says it of the place."""

    GONE = "is gone"
    NOT_SERVED = "does not serve it any more"
    CARD_GONE = "is gone or unhealthy"
    TAKEN = "was taken by others"
    OTHER_UNIT = "has another memory unit now"


@dataclass(frozen=True, slots=True)
class LostPlace:
    """A reservation whose node, or whose GPU of that ``index``, cannot be taken any more."""

    loss: PlaceLoss
    reservation: Booking
    index: int | None = None

    @property
    def text(self) -> str:
        """The loss for people."""
        gpu = "" if self.index is None else f"GPU {self.index} of "
        place = f"{gpu}node {self.reservation.node}, where {self.reservation.key} has its place,"
        return f"{place} {self.loss.value}"


class GangRule(Enum):
    """The rule by which a pod of a gang waits."""

    NO_PLACE = auto()
    PLAN_INCOMPLETE = auto()
    NO_FIRST_POD = auto()
    PLACE_LOST = auto()
    OTHER_NODE = auto()
    FIRST_NOT_BOUND = auto()


@dataclass(frozen=True, slots=True)
class GangRefusal:
    """Why a pod of a gang waits. ``kept`` of the ``size`` places of its plan are kept.

    ``other`` is the pod or the node that the rule names; ``gang`` is "" where the refusal is about one node.
    """

    rule: GangRule
    gang: str = ""
    kept: int = 0
    size: int = 0
    other: str = ""
    lost: LostPlace | None = None

    @property
    def text(self) -> str:
        """The refusal for people."""
        return f"gang {self.gang}: {self._reason()}" if self.gang else self._reason()

    def _reason(self) -> str:
        match self.rule:
            case GangRule.NO_PLACE:
                return "no place is kept for the pod yet"
            case GangRule.PLAN_INCOMPLETE:
                return f"{self.kept} of the {self.size} places of its plan are kept so far"
            case GangRule.NO_FIRST_POD:
                return "its plan has no pod to begin with"
            case GangRule.PLACE_LOST:
                return self.lost.text if self.lost is not None else ""
            case GangRule.OTHER_NODE:
                return f"its gang keeps cards of node {self.other} for it"
            case GangRule.FIRST_NOT_BOUND:
                return f"pod {self.other} of its gang is bound first, and is not yet"


def lost_place(ledger: Ledger, reservation: Booking) -> LostPlace | None:
    """Return why the cards of a reservation cannot be taken any more, None where they can."""
    row = ledger.row_of.get(reservation.node)
    node_info = ledger.node_info(row) if row is not None else None
    if row is None or node_info is None or reservation.allocation is None:
        return LostPlace(PlaceLoss.GONE, reservation)
    mode = node_info.mode.value if node_info.mode else ""
    closed = ledger.node_arrays.serving_mode[row] in (ServingMode.NOTHING, ServingMode.BLOCKED)
    if closed or mode != reservation.allocation.mode:
        return LostPlace(PlaceLoss.NOT_SERVED, reservation)
    found = _lost_card(ledger, row, node_info, reservation)
    shared = node_info.mode is not None and node_info.mode.shared
    if found is None and shared and node_info.unit_mib != reservation.allocation.unit_mib:
        return LostPlace(PlaceLoss.OTHER_UNIT, reservation)
    return found


def _lost_card(ledger: Ledger, row: int, node_info: NodeInfo, reservation: Booking) -> LostPlace | None:
    column_of = {card.uuid: i for i, card in enumerate(node_info.inventory.cards)}
    for share in reservation.cards:
        i = column_of.get(share.uuid)
        if i is None or not ledger.node_arrays.usable[row, i]:
            return LostPlace(PlaceLoss.CARD_GONE, reservation, share.index)
        if _is_overbooked(ledger, row, i, whole=reservation.whole, compute=share.percent > 0):
            return LostPlace(PlaceLoss.TAKEN, reservation, share.index)
    return None


def _is_overbooked(ledger: Ledger, row: int, i: int, *, whole: bool, compute: bool) -> bool:
    """Return whether more is booked on a card than it has, the reservation included."""
    arrays = ledger.node_arrays
    return bool(
        (whole and arrays.pods[row, i] > 1)
        or arrays.used[row, i] > arrays.total[row, i]
        or (compute and arrays.percent[row, i] > 100)
        or arrays.pods[row, i] > arrays.max_pods_per_gpu[row]
        or (arrays.grouped[row] and arrays.group[row, i] == MIXED_GROUPS)
    )
