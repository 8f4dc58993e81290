"""Holds what all nodes answer to one pod as numbers: thousands of answers are handled at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gputile.core.kube_predicates.predicate_refusal import PredicateRefusal


@dataclass(frozen=True, slots=True)
class NodeRefusals:
    """Why nodes refuse a pod, in their order.

    ``codes`` has for each node the position of its reason in ``distinct``, -1 where it takes the pod: shape [nodes].
    """

    codes: npt.NDArray[np.intp]
    distinct: Sequence[PredicateRefusal]

    @property
    def open(self) -> npt.NDArray[np.bool_]:
        """Which nodes take the pod: shape [nodes]."""
        return self.codes < 0

    def or_else(self, later: "NodeRefusals") -> "NodeRefusals":
        """Return these reasons, and those of a ``later`` check, with other reasons, for nodes that have none of these.

        Both are of the same nodes.
        """
        offset = len(self.distinct)
        added = np.where(later.codes < 0, later.codes, later.codes + offset)
        return NodeRefusals(np.where(self.codes < 0, added, self.codes), (*self.distinct, *later.distinct))

    def each(self) -> list[PredicateRefusal | None]:
        """Return the reason of each node, None for none."""
        reasons = (*self.distinct, None)  # the last one is at -1
        return [reasons[code] for code in self.codes.tolist()]


def node_refusals(reasons: Iterable[PredicateRefusal | None]) -> NodeRefusals:
    """Return the answers of nodes from the reason of each, None where it takes the pod."""
    position: dict[PredicateRefusal, int] = {}
    codes = [-1 if reason is None else position.setdefault(reason, len(position)) for reason in reasons]
    return NodeRefusals(np.array(codes, np.intp), tuple(position))
