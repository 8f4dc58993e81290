"""Repeats kube-scheduler's own checks, for what-ifs, gangs, preemption and node requests.

The rules are in ``node_fit``, ``pod_requests`` and ``inter_pod``. Single GPUs are not checked here,
but in ``placement.fit``. Volumes, resource claims, and in-place resizes in progress are not checked
at all. Results for labels, names and taints are cached until a node changes. For rules about other
pods, the counts are cached for each pod.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import msgspec
import numpy as np
import numpy.typing as npt

from gputile.api.core import Node, Pod, PodSpec
from gputile.core.kube_predicates.inter_pod import (
    Check,
    anti_affinity_terms,
    has_pod_rules,
    interpod_checks,
)
from gputile.core.kube_predicates.node_answers import (
    LruCache,
    NodeRefusals,
    SpareAmounts,
    StaticAnswers,
    node_refusals,
)
from gputile.core.kube_predicates.node_fit import static_obstacles, static_reason
from gputile.core.kube_predicates.pod_requests import (
    PODS,
    PORT_TAKEN,
    Amounts,
    HostPort,
    host_ports,
    insufficient,
    node_allocatable,
    pod_requests,
)
from gputile.core.refusal import PredicateRule, Refusal, refusal_by

UNKNOWN_NODE = refusal_by(PredicateRule.UNKNOWN_NODE)
TAINT_WEIGHT, AFFINITY_WEIGHT = 3, 2  # kube-scheduler's default weights of the two score plugins
MOST_ANSWERS = 500_000  # cached reasons of nodes, over all specs: about 50 MB
MOST_SPECS = 256
MOST_QUESTIONS = 32
MOVES_KEPT = 2048  # after this many added or removed pods, cached counts of pods are dropped


class _Needs(msgspec.Struct, frozen=True, gc=False):
    amounts: Amounts
    ports: tuple[HostPort, ...]


@dataclass(frozen=True, slots=True)
class _Load:
    """What a node offers, and what its pods use. It is immutable, so snapshots can share it."""

    allocatable: Amounts
    used: Amounts = field(default_factory=dict)
    ports: Counter[HostPort] = field(default_factory=Counter)

    def counted(self, needs: _Needs, sign: int) -> "_Load":
        """Return the load after adding (1) or removing (-1) a pod."""
        used = dict(self.used)
        for name, amount in (*needs.amounts.items(), (PODS, 1)):
            used[name] = used.get(name, 0) + sign * amount
        ports = self.ports
        if needs.ports:
            ports = ports + Counter(needs.ports) if sign > 0 else ports - Counter(needs.ports)
        return replace(self, used=used, ports=ports)

    def obstacles(self, needs: _Needs) -> Iterator[Refusal[PredicateRule]]:
        """Yield all reasons why requests do not fit, in the order of kube-scheduler's filters."""
        if not self.ports.keys().isdisjoint(needs.ports):
            yield PORT_TAKEN
        yield from insufficient(needs.amounts, self.used, self.allocatable)

    def reason(self, needs: _Needs) -> Refusal[PredicateRule] | None:
        return next(self.obstacles(needs), None)


class _PlacedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that is counted on a node, whether the node is known or not."""

    pod: Pod
    node: str
    needs: _Needs


@dataclass(slots=True)
class _CountedRules:
    """The checks of a pod's rules about other pods. They include the first ``seen`` moves."""

    pod: Pod
    checks: list[Check]
    seen: int


class Predicates:
    """A cluster as kube-scheduler's in-tree plugins see it: its nodes and pods."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.metadata.name: node for node in nodes}
        self._loads = {name: _Load(node_allocatable(node)) for name, node in self._nodes.items()}
        self._placed: dict[str, _PlacedPod] = {}
        self._on_node: dict[str, dict[str, _PlacedPod]] = {}
        self._owned: set[str] = set()  # nodes whose pods no snapshot shares
        self._repelling: dict[str, _PlacedPod] = {}
        self._needs: LruCache[int, tuple[PodSpec, _Needs, bytes]] = LruCache()  # by the spec's id
        self._static: LruCache[bytes, StaticAnswers] = LruCache()
        self._spare: SpareAmounts | None = None
        self._questions: LruCache[int, _CountedRules] = LruCache()
        # Moves: pods added (1) or removed (-1) since the first cached check
        self._moves: list[tuple[Pod, Node, int]] = []

    def snapshot(self) -> "Predicates":
        """Return a private copy, which may be changed and discarded. Its caches are empty."""
        copy = Predicates(())
        copy._nodes, copy._loads = self._nodes.copy(), self._loads.copy()
        copy._placed, copy._repelling = self._placed.copy(), self._repelling.copy()
        copy._on_node, self._owned = self._on_node.copy(), set()
        return copy

    # -- facts

    def set_node(self, node: Node) -> None:
        """Add or replace a node. Pods that were placed on the node are counted."""
        name = node.metadata.name
        known = name in self._nodes
        self._nodes[name] = node
        load = _Load(node_allocatable(node))
        for placed in self._on_node.get(name, {}).values():
            load = load.counted(placed.needs, 1)
        self._loads[name] = load
        self._forget_answers(static=known)

    def drop_node(self, name: str) -> None:
        """Remove a node. Its pods are counted again if the node is added again."""
        if self._loads.pop(name, None) is not None:
            del self._nodes[name]
            self._forget_answers(static=True)

    def place(self, pod: Pod, node_name: str) -> None:
        """Count ``pod`` as running on the node, under its UID.

        A finished or already placed pod is ignored. On an unknown node, the pod is counted only
        when the node is added.
        """
        uid = pod.metadata.uid
        if pod.finished or uid in self._placed:
            return
        known = self._needs.get(id(pod.spec))
        needs = known[1] if known is not None else _needs(pod.spec)
        placed = self._placed[uid] = _PlacedPod(pod, node_name, needs)
        self._own(node_name)[uid] = placed
        if anti_affinity_terms(pod):
            self._repelling[uid] = placed
        self._move(placed, 1)

    def remove(self, uid: str) -> str:
        """Remove a pod. Return its node, or "" if the pod was not placed."""
        placed = self._placed.pop(uid, None)
        if placed is None:
            return ""
        self._repelling.pop(uid, None)
        others = self._own(placed.node)
        del others[uid]
        if not others:
            del self._on_node[placed.node]
            self._owned.discard(placed.node)
        self._move(placed, -1)
        return placed.node

    # -- questions about all nodes

    @property
    def node_names(self) -> Sequence[str]:
        return list(self._nodes)

    def open_nodes(self, pod: Pod) -> list[str]:
        """Return the names of the nodes that accept the pod, in order."""
        return list(compress(self._nodes, self.refusals(pod).open.tolist()))

    def open_alone(self, pod: Pod) -> list[str]:
        """Return the names of the nodes that accept the pod, ignoring rules about other pods."""
        return list(compress(self._nodes, self.refusals_alone(pod).open.tolist()))

    def reasons(self, pod: Pod) -> dict[str, Refusal[PredicateRule] | None]:
        """Return for each node, in order, why it refuses the pod, or None if it accepts the pod."""
        return dict(zip(self._nodes, self.refusals(pod).each(), strict=True))

    def refusals(self, pod: Pod) -> NodeRefusals:
        """Return why each node refuses the pod, in the order of ``node_names``."""
        found = self.refusals_alone(pod)
        if not self.concerns_others(pod):
            return found
        checks = self._checks(pod)
        nodes = zip(self._nodes.values(), found.open.tolist(), strict=True)
        return found.or_else(
            node_refusals(_broken(checks, node) if is_open else None for node, is_open in nodes)
        )

    def refusals_alone(self, pod: Pod) -> NodeRefusals:
        """Return why each of ``node_names`` refuses the pod, ignoring rules about other pods."""
        needs, static = self._asked(pod.spec)
        found = static.refusals(self._nodes)
        if needs.ports:
            return found.or_else(node_refusals(load.reason(needs) for load in self._loads.values()))
        if self._spare is None:
            self._spare = SpareAmounts(
                {name: (load.allocatable, load.used) for name, load in self._loads.items()}
            )
        return found.or_else(self._spare.refusals(needs.amounts))

    def scores(self, pod: Pod, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """Return a score from 0 to 500 for each of ``rows``, by the pod's preferences.

        The preferences are node affinity and the avoidance of PreferNoSchedule taints. ``rows`` are
        positions in ``node_names``. Each preference is normalized to 0..100 over these nodes and
        weighted, as in kube-scheduler.
        """
        weights = self._asked(pod.spec)[1].weights(self._nodes)[rows]
        want, avoid = weights[:, 0], weights[:, 1]
        most_wanted, most_avoided = want.max(initial=0) or 1, avoid.max(initial=0) or 1
        preferred, avoided = 100 * want // most_wanted, 100 * avoid // most_avoided
        found: npt.NDArray[np.int64] = AFFINITY_WEIGHT * preferred + TAINT_WEIGHT * (100 - avoided)
        return found

    def concerns_others(self, pod: Pod) -> bool:
        """Return whether the pod has rules about other pods, or placed pods have anti-affinity."""
        return bool(self._repelling) or has_pod_rules(pod)

    def repelling(self) -> Iterable[Pod]:
        """Return the placed pods with anti-affinity terms, which also apply to later pods."""
        return (placed.pod for placed in self._repelling.values())

    # -- questions about one node

    def pods_on(self, name: str) -> list[Pod]:
        return [placed.pod for placed in self._on_node.get(name, {}).values()]

    def reason(self, pod: Pod, name: str) -> Refusal[PredicateRule] | None:
        """Return why one node refuses the pod, or None. No other node is checked."""
        node = self._nodes.get(name)
        if node is None:
            return UNKNOWN_NODE
        reason = static_reason(pod.spec, node) or self._loads[name].reason(self._asked(pod.spec)[0])
        if reason is not None or not self.concerns_others(pod):
            return reason
        return _broken(self._checks(pod), node)

    def obstacles(self, pod: Pod, name: str) -> list[Refusal[PredicateRule]]:
        """Return every distinct reason why a node refuses the pod, in kube-scheduler's order."""
        node = self._nodes.get(name)
        if node is None:
            return [UNKNOWN_NODE]
        room = self._loads[name].obstacles(self._asked(pod.spec)[0])
        broken = (check.reason(node.metadata.labels) for check in self._checks(pod))
        found = (
            *static_obstacles(pod.spec, node),
            *room,
            *(each for each in broken if each is not None),
        )
        return list(dict.fromkeys(found))

    def needs(self, pod: Pod) -> Amounts:
        """Return what the pod requests from a node, including 1 of the resource ``pods``."""
        return self._asked(pod.spec)[0].amounts | {PODS: 1}

    # -- internals

    def _own(self, node: str) -> dict[str, _PlacedPod]:
        """Return a node's pods to be modified. Copy them first if a snapshot may share them."""
        if node not in self._owned:
            self._owned.add(node)
            self._on_node[node] = self._on_node.get(node, {}).copy()
        return self._on_node[node]

    def _move(self, placed: _PlacedPod, sign: int) -> None:
        load = self._loads.get(placed.node)
        if load is None:
            return
        load = self._loads[placed.node] = load.counted(placed.needs, sign)
        if self._spare is not None:
            self._spare.update(placed.node, load.used)
        if len(self._moves) >= MOVES_KEPT:
            self._forget_questions()
        if self._questions:
            self._moves.append((placed.pod, self._nodes[placed.node], sign))

    def _forget_questions(self) -> None:
        self._questions.clear()
        self._moves.clear()

    def _forget_answers(self, *, static: bool) -> None:
        self._spare = None
        self._forget_questions()
        if static:
            self._static.clear()

    def _asked(self, spec: PodSpec) -> tuple[_Needs, StaticAnswers]:
        """Return the needs of a spec, with the cached results for the nodes."""
        most = max(16, min(MOST_SPECS, MOST_ANSWERS // max(1, len(self._nodes))))
        _, needs, key = self._needs.find(
            id(spec), lambda: (spec, _needs(spec), _static_key(spec)), most
        )
        return needs, self._static.find(key, lambda: StaticAnswers(spec), most)

    def _checks(self, pod: Pod) -> list[Check]:
        """Return the checks of a pod, with all placed pods counted."""
        question = self._questions.find(id(pod), lambda: self._counted(pod), MOST_QUESTIONS)
        for other, node, sign in self._moves[question.seen :]:
            for check in question.checks:
                check.count(other, node, sign)
        question.seen = len(self._moves)
        return question.checks

    def _counted(self, pod: Pod) -> _CountedRules:
        checks = interpod_checks(pod, self._nodes.values())
        for placed in (self._placed if has_pod_rules(pod) else self._repelling).values():
            node = self._nodes.get(placed.node)
            if node is not None:
                for check in checks:
                    check.count(placed.pod, node, 1)
        return _CountedRules(pod, checks, len(self._moves))


def _broken(checks: Iterable[Check], node: Node) -> Refusal[PredicateRule] | None:
    """Return the first failed check of the node that depends on other pods, or None."""
    labels = node.metadata.labels
    return next((reason for check in checks if (reason := check.reason(labels)) is not None), None)


def _needs(spec: PodSpec) -> _Needs:
    return _Needs(pod_requests(spec), host_ports(spec))


def _static_key(spec: PodSpec) -> bytes:
    """Return a cache key for the checks that depend only on a node's labels, name and taints."""
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return msgspec.msgpack.encode(
        (spec.node_name, spec.os, spec.node_selector, spec.tolerations, affinity)
    )
