"""Finds why requests do not fit nodes, again only for nodes that changed, and words the reasons."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gputile.core.devices.request import Request, Shape
from gputile.core.kube_predicates.node_answers import NodeRefusals
from gputile.core.refusal import NAMES_SHOWN, FitRule, Refusal, some, told_of_first
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.tools.simulator.equal_pods import NodeStates

Rows = npt.NDArray[np.intp]

_SHAPES_KEPT = 64
_REASONS_SHOWN = 10
FITS = -1
_UNKNOWN = -2


@dataclass(slots=True)
class _Kept:
    """The answers for one shape as of a position in the ledger's changes, numbers by the node's row.

    A number is a position in ``told``, ``FITS`` or ``_UNKNOWN``.
    """

    position: int
    numbers: Rows
    told: list[Refusal[FitRule]] = field(default_factory=list)
    number_of: dict[tuple[FitRule, str], int] = field(default_factory=dict)

    def number(self, refusal: Refusal[FitRule]) -> int:
        """Return the number of a refusal, a new one where its text is told for the first time."""
        found = self.number_of.setdefault((refusal.rule, refusal.text), len(self.told))
        if found == len(self.told):
            self.told.append(refusal)
        return found


class Refusals:
    """What is said of the nodes that requests do not fit. Nodes that are alike are judged once in a question."""

    def __init__(self, engine: PlacementEngine, states: NodeStates) -> None:
        self._engine = engine
        self._states = states
        self._shapes: OrderedDict[tuple[Shape, int], _Kept] = OrderedDict()

    def told(self, request: Request, rows: Rows) -> tuple[Sequence[Refusal[FitRule]], Rows]:
        """Return refusals, and for each of ``rows`` of the ledger the position of its own: shape [rows].

        The position is ``FITS`` for a node that the request fits. A row -1 is that of a node that is not known.
        """
        kept = self._up_to_date(request)
        numbers = kept.numbers[rows]
        alike: dict[bytes, int] = {}
        for i in np.flatnonzero(numbers == _UNKNOWN).tolist():
            row = int(rows[i])
            numbers[i] = kept.numbers[row] = self._number(kept, request, row, alike)
        return kept.told, numbers

    def _up_to_date(self, request: Request) -> _Kept:
        """Return what is kept for a request, without what the ledger has changed since."""
        ledger = self._engine.ledger
        key, now = (request.shape, ledger.group_number(request.shape.trust_group)), ledger.changes.position
        kept = self._shapes.pop(key, None)
        changed = ledger.changes.rows_since(kept.position) if kept is not None else None
        if kept is None or changed is None or len(kept.numbers) != ledger.node_arrays.rows + 1:
            # The last one is of nodes that are not known.
            kept = _Kept(now, np.full(ledger.node_arrays.rows + 1, _UNKNOWN, np.intp))
        else:
            kept.numbers[changed] = _UNKNOWN
            kept.position = now
        self._shapes[key] = kept
        if len(self._shapes) > _SHAPES_KEPT:
            self._shapes.popitem(last=False)
        return kept

    def _number(self, kept: _Kept, request: Request, row: int, alike: dict[bytes, int]) -> int:
        """Return the number of what is said of a node; ``alike`` has the numbers of this question by ``gpus_key``."""
        info = self._engine.ledger.node_info(row) if row >= 0 else None
        key = self._states.gpus_key(row, info) if info is not None else b""
        if key and key in alike:
            return alike[key]
        refusal = self._engine.refusal(request, info.name if info is not None else "")
        number = FITS if refusal is None else kept.number(refusal)
        if key:
            alike[key] = number
        return number


class NodeNames:
    """The names of nodes in their order, which is that of all arrays here, and their order by the alphabet."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.by_alphabet = np.array(sorted(range(len(names)), key=names.__getitem__), np.intp)


class _Groups:
    """Nodes with equal numbers: ``present`` are the numbers that there are, in the order of their first nodes."""

    def __init__(self, numbers: npt.NDArray[np.intp], nodes: NodeNames) -> None:
        """Group by ``numbers``, 0 or more: shape [nodes]."""
        self._nodes = nodes
        self.count = np.bincount(numbers)
        self._ends = self.count.cumsum()
        # Few numbers fit 16 bits, which are sorted by radix, in a tenth of the time.
        narrow = numbers.astype(np.int16) if len(self.count) < np.iinfo(np.int16).max else numbers
        self._members = nodes.by_alphabet[narrow[nodes.by_alphabet].argsort(kind="stable")]
        present = np.flatnonzero(self.count)
        first = np.zeros(len(self.count), np.intp)
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]  # of equal positions the last one stays
        self.present: list[int] = present[first[present].argsort()].tolist()

    def first_few(self, number: int) -> list[str]:
        """Return the first few nodes with a number by the alphabet."""
        end, count = int(self._ends[number]), int(self.count[number])
        few = self._members[end - count : end - count + min(NAMES_SHOWN, count)]
        return [self._nodes.names[i] for i in few.tolist()]


def fits_nowhere_text(
    nodes: NodeNames, in_tree: NodeRefusals, told: Sequence[Refusal[FitRule]], by_gpu: npt.NDArray[np.intp]
) -> str:
    """Return a sentence on all nodes: what their GPUs lack, the closest first, and kube-scheduler's reasons.

    ``by_gpu`` has for each node the position in ``told`` of what its GPUs lack, -1 for nothing: shape [nodes].
    """
    did_not_fit = len(told)
    groups = _Groups(np.where(by_gpu < 0, in_tree.codes + did_not_fit + 1, by_gpu), nodes)
    lacking = sorted((i for i in groups.present if i < did_not_fit), key=lambda i: -told[i].rule)
    parts = [told_of_first(groups.first_few(i), int(groups.count[i]), told[i].text) for i in lacking[:_REASONS_SHOWN]]
    if more := sum(int(groups.count[i]) for i in lacking[_REASONS_SHOWN:]):
        parts.append(f"and {more} more nodes for want of GPUs")
    for i in groups.present:
        if i >= did_not_fit:
            text = "did not fit" if i == did_not_fit else in_tree.distinct[i - did_not_fit - 1].text
            parts.append(f"{groups.count[i]} {text} ({some(groups.first_few(i), int(groups.count[i]))})")
    return f"fits none of {len(nodes.names)} node(s); " + "; ".join(parts)
