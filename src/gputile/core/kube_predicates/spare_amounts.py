"""Compares what one pod asks for with what pods have left of thousands of nodes at once, by arrays.

The amounts of nodes and pods are whole numbers of any size; those that 64 bits cannot hold are compared one by one.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from gputile.core.kube_predicates.pod_requests import Amounts

MOST_RESOURCES = 64
"""So many resources are kept as arrays; pods name any number."""
_LARGEST = 2**62


class SpareAmounts:
    """What is left of each resource, node by node, in the order of the ``spares`` given at first."""

    def __init__(self, spares: Iterable[tuple[Amounts, Amounts]]) -> None:
        """Take for each node what pods may take of it, and what they take."""
        self._nodes = list(spares)
        self._arrays: dict[str, npt.NDArray[np.int64]] = {}

    def update(self, row: int, allocatable: Amounts, used: Amounts) -> None:
        """Take what is true of one node now."""
        self._nodes[row] = allocatable, used
        for name, array in self._arrays.items():
            array[row] = _left(name, allocatable, used)

    def first_lacking(self, needs: Sequence[tuple[str, int]]) -> npt.NDArray[np.intp] | None:
        """Return for each node which of ``needs`` it lacks first, by position from 0, -1 for none: shape [nodes].

        None where arrays cannot tell.
        """
        known = self._arrays.keys() | {name for name, _ in needs}
        if len(known) > MOST_RESOURCES or any(amount >= _LARGEST for _, amount in needs):
            return None
        found = np.full(len(self._nodes), -1, np.intp)
        for i in reversed(range(len(needs))):
            name, amount = needs[i]
            found[self._array(name) < amount] = i
        return found

    def _array(self, name: str) -> npt.NDArray[np.int64]:
        array = self._arrays.get(name)
        if array is None:
            amounts = (_left(name, allocatable, used) for allocatable, used in self._nodes)
            array = self._arrays[name] = np.fromiter(amounts, np.int64, len(self._nodes))
        return array


def _left(name: str, allocatable: Amounts, used: Amounts) -> int:
    return max(-_LARGEST, min(_LARGEST, allocatable.get(name, 0) - used.get(name, 0)))
