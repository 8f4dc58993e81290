"""Words why a pod fits none of thousands of nodes: each reason is put into words once."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gputile.core.kube_predicates.node_answers import NodeRefusals
from gputile.core.placement.fit_refusal import NAMES_SHOWN, some, told_of_first
from gputile.tools.simulator.scheduling.refusals import ToldRefusal

_SHOWN = 10


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
    nodes: NodeNames, in_tree: NodeRefusals, told: Sequence[ToldRefusal], by_gpu: npt.NDArray[np.intp]
) -> str:
    """Return a sentence on all nodes: what their GPUs lack, the closest first, and kube-scheduler's reasons.

    ``by_gpu`` has for each node the position in ``told`` of what its GPUs lack, -1 for nothing: shape [nodes].
    """
    did_not_fit = len(told)
    groups = _Groups(np.where(by_gpu < 0, in_tree.codes + did_not_fit + 1, by_gpu), nodes)
    lacking = sorted((i for i in groups.present if i < did_not_fit), key=lambda i: -told[i].rule)
    parts = [told_of_first(groups.first_few(i), int(groups.count[i]), told[i].text) for i in lacking[:_SHOWN]]
    if more := sum(int(groups.count[i]) for i in lacking[_SHOWN:]):
        parts.append(f"and {more} more nodes for want of GPUs")
    for i in groups.present:
        if i >= did_not_fit:
            text = "did not fit" if i == did_not_fit else in_tree.distinct[i - did_not_fit - 1].text
            parts.append(f"{groups.count[i]} {text} ({some(groups.first_few(i), int(groups.count[i]))})")
    return f"fits none of {len(nodes.names)} node(s); " + "; ".join(parts)
