"""Keeps how full requests would make nodes: pods that differ in CPU and memory alone share it."""

from collections import OrderedDict
from dataclasses import dataclass

from gputile.core.devices.request import Shape
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.vectorized import Fullness, by_width, fullness, no_fullness

MOST_SHAPES = 64


@dataclass(slots=True)
class _ShapeAnswers:
    """The answers of all rows for one shape, as of a position in the ledger's changes."""

    found: Fullness
    position: int = -1


class KeptFullness:
    """The fullness of a ledger's nodes by shape; only rows that changed since are looked at again."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: OrderedDict[Shape, _ShapeAnswers] = OrderedDict()

    def of(self, shape: Shape) -> Fullness:
        """Return how full a request of a shape would make each row of the ledger, until that changes."""
        ledger, kept = self._ledger, self._kept.pop(shape, None)
        if kept is None or len(kept.found.plain) != ledger.node_arrays.rows:
            kept = _ShapeAnswers(no_fullness(ledger.node_arrays.rows))
        self._kept[shape] = kept
        if len(self._kept) > MOST_SHAPES:
            self._kept.popitem(last=False)
        if kept.position != ledger.changes.position:
            self._look_again(kept, shape)
        return kept.found

    def _look_again(self, kept: _ShapeAnswers, shape: Shape) -> None:
        ledger = self._ledger
        changed = ledger.changes.rows_since(kept.position)
        rows = slice(0, ledger.node_arrays.rows) if changed is None else changed
        group = ledger.group_number(shape.trust_group)
        for arrays, part, these in by_width(ledger.node_arrays, rows):
            kept.found.put(part if changed is None else changed[part], fullness(arrays, shape, group, these))
        kept.position = ledger.changes.position
