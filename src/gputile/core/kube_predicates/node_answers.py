"""Keeps what nodes answer to pods, for thousands of nodes at once.

``NodeRefusals`` are answers as numbers, ``SpareAmounts`` compares what a pod asks for with what nodes have left,
and ``KnownAnswers`` keeps what nodes answer by labels, names and taints; specs that ask the same share it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from gputile.api.core import Node, PodSpec
from gputile.core.kube_predicates.node_fit import (
    avoided_taints,
    preferred_weight,
    static_reason,
    static_reasons,
)
from gputile.core.kube_predicates.pod_requests import Amounts
from gputile.core.refusal import PredicateRule, Refusal


@dataclass(frozen=True, slots=True)
class NodeRefusals:
    """Why nodes refuse a pod, in their order.

    ``codes`` has for each node the position of its reason in ``distinct``, -1 where it takes the pod: shape [nodes].
    """

    codes: npt.NDArray[np.intp]
    distinct: Sequence[Refusal[PredicateRule]]

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

    def each(self) -> list[Refusal[PredicateRule] | None]:
        reasons = (*self.distinct, None)  # the last one is at -1
        return [reasons[code] for code in self.codes.tolist()]


def node_refusals(reasons: Iterable[Refusal[PredicateRule] | None]) -> NodeRefusals:
    """Return the answers of nodes from the reason of each, None where it takes the pod."""
    position: dict[Refusal[PredicateRule], int] = {}
    codes = [-1 if reason is None else position.setdefault(reason, len(position)) for reason in reasons]
    return NodeRefusals(np.array(codes, np.intp), tuple(position))


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


class SpecAnswers:
    """What nodes answer, as of a ``position`` in the log of changed nodes.

    ``reasons`` has for each node, in their order, why no pod of such a spec may run there, None where one may;
    ``refusals`` are the same as numbers.
    """

    def __init__(self, spec: PodSpec, reasons: dict[str, Refusal[PredicateRule] | None], position: int) -> None:
        self._spec = PodSpec(
            node_name=spec.node_name,
            os=spec.os,
            node_selector=spec.node_selector,
            tolerations=spec.tolerations,
            affinity=spec.affinity,
        )  # the rest of a spec may be large
        self.reasons = reasons
        self.refusals = node_refusals(reasons.values())
        self.position = position
        self._weights: npt.NDArray[np.int64] | None = None

    def look_again(self, changed: Iterable[str], nodes: Mapping[str, Node]) -> None:
        """Ask the nodes that came, changed or went."""
        reasons = self.reasons
        for name in changed:
            if name in nodes:
                reasons[name] = static_reason(self._spec, nodes[name])
            else:
                reasons.pop(name, None)
        if list(reasons) != list(nodes):
            self.reasons = {name: reasons[name] for name in nodes}
        self.refusals = node_refusals(self.reasons.values())
        self._weights = None

    def weights(self, nodes: Mapping[str, Node]) -> npt.NDArray[np.int64]:
        """Return how much each node is preferred, and how many of its taints are avoided: shape [nodes, 2]."""
        if self._weights is None:
            pairs = [(preferred_weight(self._spec, n), avoided_taints(self._spec, n)) for n in nodes.values()]
            self._weights = np.array(pairs, np.int64).reshape(-1, 2)
        return self._weights


class KnownAnswers:
    """The answers to the specs that were asked about last. ``keep`` is how many changes of nodes are remembered."""

    def __init__(self, keep: int) -> None:
        self._answers: OrderedDict[bytes, SpecAnswers] = OrderedDict()
        self._changed: RecentChanges[str] = RecentChanges(keep)

    def node_changed(self, name: str) -> None:
        """Take notice of a node that came, changed or went."""
        self._changed.add(name)

    def answers(self, spec: PodSpec, key: bytes, nodes: Mapping[str, Node], most: int) -> SpecAnswers:
        """Return what ``nodes`` answer to a spec; at most ``most`` are kept. ``key`` is its ``answers_key``."""
        known = self._answers.get(key)
        if known is None or not self._changed.reaches(known.position):
            found = static_reasons(spec, list(nodes.values()))
            known = self._answers[key] = SpecAnswers(spec, dict(zip(nodes, found, strict=True)), self._changed.position)
            if len(self._answers) > most:
                self._answers.popitem(last=False)
        elif changed := self._changed.since(known.position):
            known.look_again(dict.fromkeys(changed), nodes)
            known.position = self._changed.position
        self._answers.move_to_end(key)
        return known


def answers_key(spec: PodSpec) -> bytes:
    """Return what is equal for specs that all nodes answer alike."""
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return msgspec.msgpack.encode((spec.node_name, spec.os, spec.node_selector, spec.tolerations, affinity))


Change = TypeVar("Change")


class RecentChanges(Generic[Change]):
    """A log of changes, bounded: who fell behind further than the log reaches begins anew."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._changes: list[Change] = []
        self._base = 0

    @property
    def position(self) -> int:
        """The number of changes so far: what to pass to ``since`` the next time."""
        return self._base + len(self._changes)

    def add(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) >= 2 * self._keep:
            self._base += self._keep
            del self._changes[: self._keep]

    def reaches(self, position: int) -> bool:
        return position >= self._base

    def since(self, position: int) -> list[Change]:
        """Return the changes since ``position``, to which the log has to reach."""
        return self._changes[position - self._base :]
