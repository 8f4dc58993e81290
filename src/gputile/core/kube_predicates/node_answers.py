"""Caches the results of checks, for thousands of nodes at once.

``NodeRefusals`` stores the results as numbers. ``StaticAnswers`` caches the results for labels,
names and taints. ``SpareAmounts`` compares the requests of a pod with the free resources of nodes.
The checks themselves are in ``node_fit`` and ``pod_requests``.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gputile.api.core import Node, PodSpec
from gputile.core.kube_predicates.node_fit import avoided_taints, preferred_weight, static_reasons
from gputile.core.kube_predicates.pod_requests import PODS, TOO_MANY_PODS, Amounts, lacks
from gputile.core.refusal import PredicateRule, Refusal

_LARGEST = 2**62
"""More than any node has of any resource. Larger amounts count as equal."""


@dataclass(frozen=True, slots=True)
class NodeRefusals:
    """The reasons why nodes refuse a pod, in the order of the nodes.

    ``codes`` has, for each node, the position of the node's reason in ``distinct``. The code is -1
    if the node accepts the pod.
    """

    codes: npt.NDArray[np.intp]
    distinct: Sequence[Refusal[PredicateRule]]

    @property
    def open(self) -> npt.NDArray[np.bool_]:
        """Whether each node accepts the pod."""
        return self.codes < 0

    def or_else(self, later: "NodeRefusals") -> "NodeRefusals":
        """Return these reasons and, for nodes without a reason, the reasons of a ``later`` check.

        Both checks must be of the same nodes, and have no reason in common.
        """
        offset = len(self.distinct)
        added = np.where(later.codes < 0, later.codes, later.codes + offset)
        return NodeRefusals(
            np.where(self.codes < 0, added, self.codes), (*self.distinct, *later.distinct)
        )

    def each(self) -> list[Refusal[PredicateRule] | None]:
        reasons = (*self.distinct, None)  # code -1 is the last item
        return [reasons[code] for code in self.codes.tolist()]


def node_refusals(reasons: Iterable[Refusal[PredicateRule] | None]) -> NodeRefusals:
    """Build ``NodeRefusals`` from the reason of each node. None means that the pod is accepted."""
    position: dict[Refusal[PredicateRule], int] = {}
    codes = [
        -1 if reason is None else position.setdefault(reason, len(position)) for reason in reasons
    ]
    return NodeRefusals(np.array(codes, np.intp), tuple(position))


class StaticAnswers:
    """The results of checking a spec against labels, names and taints of nodes.

    Nodes may be added, but must not change or be removed.
    """

    def __init__(self, spec: PodSpec) -> None:
        # Other fields of a spec may be large, so they are not stored
        self._spec = PodSpec(
            node_name=spec.node_name,
            os=spec.os,
            node_selector=spec.node_selector,
            tolerations=spec.tolerations,
            affinity=spec.affinity,
        )
        self._reasons: list[Refusal[PredicateRule] | None] = []
        self._refusals = node_refusals(())
        self._weights: npt.NDArray[np.int64] = np.zeros((0, 2), np.int64)

    def refusals(self, nodes: Mapping[str, Node]) -> NodeRefusals:
        if len(nodes) > len(self._reasons):
            self._reasons += static_reasons(
                self._spec, list(islice(nodes.values(), len(self._reasons), None))
            )
            self._refusals = node_refusals(self._reasons)
        return self._refusals

    def weights(self, nodes: Mapping[str, Node]) -> npt.NDArray[np.int64]:
        """Return a row for each node: its preference weight and its number of avoided taints."""
        if len(nodes) > len(self._weights):
            pairs = [
                (preferred_weight(self._spec, n), avoided_taints(self._spec, n))
                for n in nodes.values()
            ]
            self._weights = np.array(pairs, np.int64).reshape(-1, 2)
        return self._weights


class SpareAmounts:
    """The free amount of each resource on each node, for resources that any node offers."""

    def __init__(self, nodes: Mapping[str, tuple[Amounts, Amounts]]) -> None:
        """Copy ``nodes``, which has the allocatable and the used amounts of each node."""
        self._nodes = dict(nodes)
        self._row = {name: row for row, name in enumerate(nodes)}
        self._offered = set[str]().union(*(allocatable for allocatable, _ in nodes.values()))
        self._left: dict[str, npt.NDArray[np.int64]] = {}

    def update(self, name: str, used: Amounts) -> None:
        allocatable, _ = self._nodes[name]
        self._nodes[name] = allocatable, used
        for resource, left in self._left.items():
            left[self._row[name]] = _left(resource, allocatable, used)

    def refusals(self, needs: Amounts) -> NodeRefusals:
        """Refuse each node that lacks one of ``needs``. The number of pods is checked first."""
        codes = np.full(len(self._nodes), -1, np.intp)
        distinct: list[Refusal[PredicateRule]] = []
        for name, amount in ((PODS, 1), *needs.items()):
            left = self._amounts(name) if name in self._offered else np.int64(0)
            codes[(codes < 0) & (left < min(amount, _LARGEST + 1))] = len(distinct)
            distinct.append(TOO_MANY_PODS if not distinct else lacks(name))
            if name not in self._offered:
                break  # no node has the resource, and a pod may name many unknown resources
        return NodeRefusals(codes, tuple(distinct))

    def _amounts(self, name: str) -> npt.NDArray[np.int64]:
        array = self._left.get(name)
        if array is None:
            amounts = (_left(name, allocatable, used) for allocatable, used in self._nodes.values())
            array = self._left[name] = np.fromiter(amounts, np.int64, len(self._nodes))
        return array


def _left(name: str, allocatable: Amounts, used: Amounts) -> int:
    return max(-_LARGEST, min(_LARGEST, allocatable.get(name, 0) - used.get(name, 0)))


Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(OrderedDict[Key, Value]):
    """A cache of the most recently used values."""

    def find(self, key: Key, make: Callable[[], Value], most: int) -> Value:
        """Return the value of ``key``, created by ``make`` if missing. Store at most ``most``."""
        found = self.get(key)
        if found is None:
            found = self[key] = make()
            if len(self) > most:
                self.popitem(last=False)
        else:
            self.move_to_end(key)
        return found
