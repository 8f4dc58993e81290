"""Keeps what nodes answer to specs by labels, names and taints; specs that ask the same share it."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from gputile.api.core import Node, PodSpec
from gputile.core.kube_predicates.node_fit import avoided_taints, preferred_weight, static_reason, static_reasons
from gputile.core.kube_predicates.node_refusals import node_refusals
from gputile.core.kube_predicates.predicate_refusal import PredicateRefusal
from gputile.core.kube_predicates.recent_changes import RecentChanges


class SpecAnswers:
    """What nodes answer, as of a ``position`` in the log of changed nodes.

    ``reasons`` has for each node, in their order, why no pod of such a spec may run there, None where one may;
    ``refusals`` are the same as numbers.
    """

    def __init__(self, spec: PodSpec, reasons: dict[str, PredicateRefusal | None], position: int) -> None:
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
        self._weights: dict[str, tuple[int, int]] = {}
        self._all_weights: npt.NDArray[np.int64] | None = None

    def look_again(self, changed: Iterable[str], nodes: Mapping[str, Node]) -> None:
        """Ask the nodes that came, changed or went."""
        reasons = self.reasons
        for name in changed:
            self._weights.pop(name, None)
            if name in nodes:
                reasons[name] = static_reason(self._spec, nodes[name])
            else:
                reasons.pop(name, None)
        if list(reasons) != list(nodes):
            self.reasons = {name: reasons[name] for name in nodes}
        self.refusals = node_refusals(self.reasons.values())
        self._all_weights = None

    def weight(self, node: Node) -> tuple[int, int]:
        """Return how much the node is preferred, and how many of its taints are avoided."""
        name = node.metadata.name
        found = self._weights.get(name)
        if found is None:
            found = self._weights[name] = preferred_weight(self._spec, node), avoided_taints(self._spec, node)
        return found

    def weights(self, nodes: Mapping[str, Node]) -> npt.NDArray[np.int64]:
        """Return ``weight`` of each of all ``nodes``: shape [nodes, 2]."""
        if self._all_weights is None:
            self._all_weights = np.array([self.weight(node) for node in nodes.values()], np.int64).reshape(-1, 2)
        return self._all_weights


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
