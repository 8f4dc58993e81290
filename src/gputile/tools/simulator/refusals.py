"""Explains why requests fit no node. The refusals of nodes are cached until the nodes change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gputile.core.devices.request import Request, Shape
from gputile.core.kube_predicates.node_answers import LruCache, NodeRefusals
from gputile.core.refusal import NAMES_SHOWN, FitRule, Refusal, refused_nodes_text, some
from gputile.core.scheduling.placement_engine import PlacementEngine

Rows = npt.NDArray[np.intp]

_MOST_SHAPES = 64
_REASONS_SHOWN = 10
FITS = -1
_UNKNOWN = -2


class JudgedNodes:
    """The names of nodes, and their rows in the ledger. The row of an unknown node is -1.

    Arrays with an item for each node, such as ``by_gpu``, have the order of ``names``.
    """

    def __init__(self, names: Sequence[str], row_of: Mapping[str, int]) -> None:
        self.names = names
        self.rows: Rows = np.fromiter((row_of.get(name, -1) for name in names), np.intp, len(names))
        self.by_alphabet = np.array(sorted(range(len(names)), key=names.__getitem__), np.intp)


@dataclass(slots=True)
class _CachedRefusals:
    """The refusals of one request shape. They reflect the ledger's changes up to ``position``.

    ``numbers`` has an item per ledger row: ``FITS``, ``_UNKNOWN`` or an index into ``refusals``.
    """

    numbers: Rows
    position: int = -1
    refusals: list[Refusal[FitRule]] = field(default_factory=list)
    indices: dict[tuple[FitRule, str], int] = field(default_factory=dict)

    def index_of(self, refusal: Refusal[FitRule] | None) -> int:
        """Return the index of a refusal in ``refusals``. Append the refusal if it is new."""
        if refusal is None:
            return FITS
        found = self.indices.setdefault((refusal.rule, refusal.text), len(self.refusals))
        if found == len(self.refusals):
            self.refusals.append(refusal)
        return found


class Refusals:
    """Caches the refusals of nodes for each request shape."""

    def __init__(self, engine: PlacementEngine) -> None:
        self._engine = engine
        self._shapes: LruCache[Shape, _CachedRefusals] = LruCache()

    def lookup(self, request: Request, rows: Rows) -> tuple[Sequence[Refusal[FitRule]], Rows]:
        """Return the distinct refusals, and for each of ``rows`` the index of its refusal.

        The index is ``FITS`` if the request fits the node. Row -1 means an unknown node.
        """
        ledger, shape = self._engine.ledger, request.shape
        count = ledger.node_arrays.rows + 1  # the last item is for unknown nodes
        cached = self._shapes.find(
            shape, lambda: _CachedRefusals(np.full(count, _UNKNOWN, np.intp)), _MOST_SHAPES
        )
        changed = ledger.changes.rows_since(cached.position)
        cached.numbers[slice(None) if changed is None else changed] = _UNKNOWN
        cached.position = ledger.changes.position
        for row in rows[cached.numbers[rows] == _UNKNOWN].tolist():
            info = ledger.node_info(row) if row >= 0 else None
            cached.numbers[row] = cached.index_of(
                self._engine.refusal(request, info.name if info is not None else "")
            )
        return cached.refusals, cached.numbers[rows]


def fits_nowhere_text(
    nodes: JudgedNodes, in_tree: NodeRefusals, refusals: Sequence[Refusal[FitRule]], by_gpu: Rows
) -> str:
    """Return the message that states why a pod fits none of the nodes.

    Refusals because of GPUs come first, beginning with the closest fit. kube-scheduler's reasons
    follow. For each node, ``by_gpu`` has the index of the refusal in ``refusals``, or -1 if the
    node's GPUs are not the reason.
    """
    # This number means "no reason". Higher numbers are kube-scheduler's reasons.
    no_reason = len(refusals)
    numbers = np.where(by_gpu < 0, in_tree.codes + no_reason + 1, by_gpu)
    ordered = numbers[nodes.by_alphabet]
    present, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    count_of: dict[int, int] = dict(zip(present.tolist(), counts.tolist(), strict=True))

    def names_of(number: int) -> list[str]:
        positions = nodes.by_alphabet[ordered == number][:NAMES_SHOWN].tolist()
        return [nodes.names[i] for i in positions]

    in_order: list[int] = present[first.argsort()].tolist()
    lacking = sorted((i for i in in_order if i < no_reason), key=lambda i: -refusals[i].rule)
    parts = [
        refused_nodes_text(names_of(i), count_of[i], refusals[i].text)
        for i in lacking[:_REASONS_SHOWN]
    ]
    if more := sum(count_of[i] for i in lacking[_REASONS_SHOWN:]):
        parts.append(f"and {more} more nodes whose GPUs do not suffice")
    for i in in_order:
        if i >= no_reason:
            text = "did not fit" if i == no_reason else in_tree.distinct[i - no_reason - 1].text
            parts.append(f"{count_of[i]} {text} ({some(names_of(i), count_of[i])})")
    return f"fits none of {len(nodes.names)} node(s); " + "; ".join(parts)
