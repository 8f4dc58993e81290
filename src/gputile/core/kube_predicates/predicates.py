"""Makes kube-scheduler's own checks beside the GPU decision, so that a what-if tells the truth.

Of volumes only disks that pods name themselves are looked at, and of resource claims nothing. What was answered once is
kept, and only what has changed since is looked at again: by spec for what concerns a node alone, by pod for what
concerns other pods.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from gputile.api.core import Node, Pod, PodSpec, PodStatus
from gputile.core.kube_predicates.inter_pod import Check, Placed, anti_affinity_terms, interpod_checks, looks_at_pods
from gputile.core.kube_predicates.node_answers import (
    KnownAnswers,
    NodeRefusals,
    RecentChanges,
    SpareAmounts,
    SpecAnswers,
    answers_key,
    node_refusals,
)
from gputile.core.kube_predicates.node_fit import static_obstacles, static_reason
from gputile.core.kube_predicates.pod_requests import (
    NEW_POD,
    PODS,
    TOO_MANY_PODS,
    Amounts,
    insufficient,
    lacks,
    node_allocatable,
    pod_requests,
)
from gputile.core.kube_predicates.ports_and_disks import (
    DISK_TAKEN,
    HOST_PORTS,
    AttachedDisks,
    Disk,
    HostPort,
    TakenPorts,
    disks,
    host_ports,
)
from gputile.core.refusal import PredicateRule, Refusal, refusal_by

UNKNOWN_NODE = refusal_by(PredicateRule.UNKNOWN_NODE)
TAINT_WEIGHT, AFFINITY_WEIGHT = 3, 2  # kube-scheduler's default weights of the two score plugins
MOST_ANSWERS = 500_000  # reasons of nodes that are kept, over all specs: some 50 MB
_FEWEST_TEMPLATES, _MOST_TEMPLATES = 16, 256
MOST_QUESTIONS = 32
MOVES_KEPT = 2048  # so far back is told what has changed; who fell behind further begins anew


class _Needs(msgspec.Struct, frozen=True, gc=False):
    """What a pod takes of its node: amounts, and what no other pod of the node may take too."""

    amounts: Amounts
    ports: tuple[HostPort, ...]
    disks: tuple[Disk, ...]

    def repel_themselves(self) -> bool:
        """Return whether two pods with these needs cannot be on one node."""
        return bool(self.ports) or any(not disk.shared for disk in self.disks)


@dataclass(frozen=True, slots=True)
class _Load:
    """A node and what its pods take of it; never changed, so that snapshots share it."""

    node: Node
    allocatable: Amounts
    used: Amounts = field(default_factory=dict)
    ports: TakenPorts = field(default_factory=TakenPorts)
    disks: AttachedDisks = field(default_factory=AttachedDisks)

    def counted(self, needs: _Needs, sign: int) -> "_Load":
        """Return the load with a pod that came (1), or without one that went (-1)."""
        used = dict(self.used)
        for name, amount in (*needs.amounts.items(), (PODS, 1)):
            used[name] = used.get(name, 0) + sign * amount
        ports = self.ports.counted(needs.ports, sign) if needs.ports else self.ports
        attached = self.disks.counted(needs.disks, sign) if needs.disks else self.disks
        return _Load(self.node, self.allocatable, used, ports, attached)

    def reason(self, needs: _Needs) -> Refusal[PredicateRule] | None:
        """Return why there is no room for a pod, in the order of kube-scheduler's filters; None where there is room."""
        if needs.ports and self.ports.conflict(needs.ports):
            return HOST_PORTS
        lacking = insufficient(needs.amounts, self.used, self.allocatable)
        if lacking is None and needs.disks and self.disks.conflict(needs.disks):
            return DISK_TAKEN
        return lacking


@dataclass(slots=True)
class _Template:
    """What is the same for all pods of one spec: its needs, and answers per node, as of a position in the log.

    ``key`` is that of the answers by labels, names and taints; the answers here are for what is there as well. They are
    None until somebody asks.
    """

    spec: PodSpec
    needs: _Needs
    key: bytes
    reasons: dict[str, Refusal[PredicateRule] | None] | None = None
    position: int = 0


@dataclass(slots=True)
class _CountedRules:
    """What a pod's rules about others have counted, as of a position in the log."""

    pod: Pod
    checks: list[Check]
    position: int


class _Guest(msgspec.Struct, frozen=True, gc=False):
    """A pod that is counted on a node, whether the node is known or not."""

    pod: Pod
    node: str
    needs: _Needs


class Predicates:
    """The in-tree scheduler's view of a cluster: place pods in it, and ask where another may go."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.metadata.name: node for node in nodes}
        self._loads = {name: _Load(node, node_allocatable(node)) for name, node in self._nodes.items()}
        self._spare: SpareAmounts | None = None
        self._rows: dict[str, int] = {}
        self._stale: set[str] = set()  # nodes of which the arrays do not know what their pods take
        self._guests: dict[str, _Guest] = {}
        self._on_node: dict[str, dict[str, _Guest]] = {}
        self._owned: set[str] = set()  # nodes whose guests no snapshot shares
        self._repelling: dict[str, _Guest] = {}
        self._templates: OrderedDict[int, _Template] = OrderedDict()
        self._questions: OrderedDict[int, _CountedRules] = OrderedDict()
        self._known = KnownAnswers(MOVES_KEPT)
        # which node, who, and whether it came or went
        self._moves: RecentChanges[tuple[str, Placed | None, int]] = RecentChanges(MOVES_KEPT)
        self.nodes_version = 0
        """Another one whenever a node came, changed or went."""

    def snapshot(self) -> "Predicates":
        """Return a private copy, which may be changed and forgotten; it has no answers yet."""
        copy = Predicates(())
        copy._nodes, copy._loads = self._nodes.copy(), self._loads.copy()
        copy._guests, copy._repelling = self._guests.copy(), self._repelling.copy()
        copy._on_node, self._owned = self._on_node.copy(), set()
        copy.nodes_version = self.nodes_version
        return copy

    # -- facts

    def put_node(self, node: Node) -> Node | None:
        """Count a node; pods that were placed on it count there. Return the one of its name in whose place it is."""
        name = node.metadata.name
        before = self._nodes.get(name)
        if before is None:
            self._spare = None
        self._nodes[name] = node
        load = _Load(node, node_allocatable(node))
        for guest in self._on_node.get(name, {}).values():
            load = load.counted(guest.needs, 1)
        self._loads[name] = load
        self._node_changed(name)
        return before

    def drop_node(self, name: str) -> None:
        """Count a node no longer; its pods count again when it comes back."""
        if self._loads.pop(name, None) is not None:
            del self._nodes[name]
            self._spare = None
            self._node_changed(name)

    def place(self, pod: Pod, node_name: str) -> None:
        """Count ``pod`` as running on the node, under its UID. A finished pod, or one that is placed, counts nothing.

        On an unknown node it counts nothing until the node comes.
        """
        uid = pod.metadata.uid
        if pod.finished or uid in self._guests:
            return
        template = None if pod.status.resized else self._templates.get(id(pod.spec))
        needs = template.needs if template is not None else _needs(pod.spec, pod.status)
        guest = self._guests[uid] = _Guest(pod, node_name, needs)
        self._own(node_name)[uid] = guest
        if anti_affinity_terms(pod):
            self._repelling[uid] = guest
        self._moved(guest, 1)

    def remove(self, uid: str) -> str:
        """Count a pod no longer; return the node that it was on, "" for none."""
        guest = self._guests.pop(uid, None)
        if guest is None:
            return ""
        self._repelling.pop(uid, None)
        others = self._own(guest.node)
        del others[uid]
        if not others:
            del self._on_node[guest.node]
            self._owned.discard(guest.node)
        self._moved(guest, -1)
        return guest.node

    # -- questions

    def pods_on(self, name: str) -> list[Pod]:
        return [guest.pod for guest in self._on_node.get(name, {}).values()]

    def reasons(self, pod: Pod) -> dict[str, Refusal[PredicateRule] | None]:
        """Return for each node, in order, why the pod may not go there; None where it may."""
        answers = dict(self.alone(pod))
        if not self.concerns_others(pod):
            return answers
        checks = self._checks(pod)
        for name, reason in answers.items():
            if reason is None:
                answers[name] = _broken(checks, self._loads[name].node)
        return answers

    def reason(self, pod: Pod, name: str) -> Refusal[PredicateRule] | None:
        """Return why the pod may not go to one node, None where it may; no other node is judged."""
        load = self._loads.get(name)
        if load is None:
            return UNKNOWN_NODE
        reason = static_reason(pod.spec, load.node) or load.reason(_needs(pod.spec))
        if reason is not None or not self.concerns_others(pod):
            return reason
        return _broken(self._checks(pod), load.node)

    def obstacles(self, pod: Pod, name: str) -> list[Refusal[PredicateRule]]:
        """Return every reason why the pod may not go to one node, each once; ``reasons`` tells the first."""
        load = self._loads.get(name)
        if load is None:
            return [UNKNOWN_NODE]
        needs = self._template(pod.spec).needs
        ports = [HOST_PORTS] if load.ports.conflict(needs.ports) else []
        lacking = (insufficient({n: amount}, load.used, load.allocatable) for n, amount in self.needs(pod).items())
        taken = [DISK_TAKEN] if load.disks.conflict(needs.disks) else []
        broken = (check.reason(load.node.metadata.labels) for check in self._checks(pod))
        found = (*static_obstacles(pod.spec, load.node), *ports, *lacking, *taken, *broken)
        return list(dict.fromkeys(reason for reason in found if reason is not None))

    def scores(self, pod: Pod, node_names: Sequence[str]) -> dict[str, int]:
        """Return 0 to 500 per node for what the pod prefers: its node affinity, and few PreferNoSchedule taints.

        Each part is stretched to 0..100 over the nodes asked, as kube-scheduler does, and weighted as it does.
        """
        position = {name: row for row, name in enumerate(self._nodes)}
        rows = np.fromiter((position[name] for name in node_names), np.intp, len(node_names))
        return dict(zip(node_names, self.scores_among(pod, rows).tolist(), strict=True))

    def scores_among(self, pod: Pod, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """Return ``scores`` of the nodes at these positions of ``node_names``: shape [rows]."""
        weights = self._answers(self._template(pod.spec)).weights(self._nodes)[rows]
        want, avoid = weights[:, 0], weights[:, 1]
        most_wanted, most_avoided = want.max(initial=0) or 1, avoid.max(initial=0) or 1
        preferred, avoided = 100 * want // most_wanted, 100 * avoid // most_avoided
        found: npt.NDArray[np.int64] = AFFINITY_WEIGHT * preferred + TAINT_WEIGHT * (100 - avoided)
        return found

    def repelling(self) -> Iterable[Pod]:
        """Return the pods whose anti-affinity holds against pods that come later."""
        return (guest.pod for guest in self._repelling.values())

    def concerns_others(self, pod: Pod) -> bool:
        """Return whether it matters for the pod which other pods are where, beside what they take of the nodes."""
        return bool(self._repelling) or looks_at_pods(pod)

    def alone(self, pod: Pod) -> Mapping[str, Refusal[PredicateRule] | None]:
        """Return for each node why the pod may not go there whatever other pods' labels are; None where it may."""
        template, now = self._template(pod.spec), self._moves.position
        if template.reasons is None or not self._moves.reaches(template.position):
            template.reasons = self._reasons(template)
        elif moves := self._moves.since(template.position):
            known = self._answers(template).reasons
            for name in dict.fromkeys(name for name, _, _ in moves):
                load = self._loads.get(name)
                if load is None:
                    template.reasons.pop(name, None)
                else:
                    template.reasons[name] = known[name] or load.reason(template.needs)
        template.position = now
        return template.reasons

    def refusals_alone(self, pod: Pod) -> NodeRefusals:
        """Return what ``alone`` tells, as numbers and in the order of ``node_names``."""
        template = self._template(pod.spec)
        lacking = self._lacking(template.needs)
        if lacking is not None:
            return self._answers(template).refusals.or_else(lacking)
        reasons = self.alone(pod)
        return node_refusals(reasons[name] for name in self._nodes)

    @property
    def node_names(self) -> Sequence[str]:
        return list(self._nodes)

    def needs(self, pod: Pod) -> Amounts:
        """Return what the pod takes of a node, its place as a pod included."""
        return self._template(pod.spec).needs.amounts | {PODS: 1}

    def spare(self, name: str) -> Amounts:
        """Return what pods have left of a node; nothing of one that is not known."""
        load = self._loads.get(name)
        if load is None:
            return {}
        return {resource: max(0, amount - load.used.get(resource, 0)) for resource, amount in load.allocatable.items()}

    def capacity_bound(self, pod: Pod, name: str) -> int:
        """Return how many pods like this one a node has the resources for that kube-scheduler counts."""
        load = self._loads.get(name)
        if load is None:
            return 0
        needs = self._template(pod.spec).needs
        if load.ports.conflict(needs.ports) or load.disks.conflict(needs.disks):
            return 0
        capacity_bound = load.allocatable.get(PODS, 0) - load.used.get(PODS, 0)
        if needs.repel_themselves():
            capacity_bound = min(capacity_bound, 1)
        for resource, amount in needs.amounts.items():
            capacity_bound = min(
                capacity_bound, (load.allocatable.get(resource, 0) - load.used.get(resource, 0)) // amount
            )
        return max(0, capacity_bound)

    # -- within

    def _own(self, node: str) -> dict[str, _Guest]:
        """Return the guests of a node, to be changed: a snapshot may share them until then."""
        if node not in self._owned:
            self._owned.add(node)
            self._on_node[node] = self._on_node.get(node, {}).copy()
        return self._on_node[node]

    def _moved(self, guest: _Guest, sign: int) -> None:
        load = self._loads.get(guest.node)
        if load is None:
            return
        self._loads[guest.node] = load.counted(guest.needs, sign)
        self._log(guest.node, Placed(guest.pod, load.node), sign)

    def _node_changed(self, name: str) -> None:
        self.nodes_version += 1
        self._questions.clear()
        self._known.node_changed(name)
        self._log(name, None, 0)

    def _log(self, name: str, placed: Placed | None, sign: int) -> None:
        if self._spare is not None:
            self._stale.add(name)
        self._moves.add((name, placed, sign))

    def _template(self, spec: PodSpec) -> _Template:
        template = self._templates.get(id(spec))
        if template is None:
            template = self._templates[id(spec)] = _Template(spec, _needs(spec), answers_key(spec))
            if len(self._templates) > self._most_templates():
                self._templates.popitem(last=False)
        self._templates.move_to_end(id(spec))
        return template

    def _most_templates(self) -> int:
        return max(_FEWEST_TEMPLATES, min(_MOST_TEMPLATES, MOST_ANSWERS // max(1, len(self._loads))))

    def _answers(self, template: _Template) -> SpecAnswers:
        return self._known.answers(template.spec, template.key, self._nodes, self._most_templates())

    def _reasons(self, template: _Template) -> dict[str, Refusal[PredicateRule] | None]:
        needs, known = template.needs, self._answers(template)
        lacking = self._lacking(needs)
        if lacking is None:
            return {name: reason or self._loads[name].reason(needs) for name, reason in known.reasons.items()}
        return dict(zip(known.reasons, known.refusals.or_else(lacking).each(), strict=True))

    def _lacking(self, needs: _Needs) -> NodeRefusals | None:
        """Return what nodes lack first of a place for a pod, and of what it asks; None where it asks for more."""
        if needs.ports or needs.disks:
            return None
        if self._spare is None:
            self._spare = SpareAmounts((load.allocatable, load.used) for load in self._loads.values())
            self._rows = {name: row for row, name in enumerate(self._loads)}
        else:
            for name in self._stale:
                if (load := self._loads.get(name)) is not None:
                    self._spare.update(self._rows[name], load.allocatable, load.used)
        self._stale.clear()
        first = self._spare.first_lacking([(PODS, 1), *needs.amounts.items()])
        return NodeRefusals(first, (TOO_MANY_PODS, *map(lacks, needs.amounts))) if first is not None else None

    def _checks(self, pod: Pod) -> list[Check]:
        """Return the checks of a pod, with everybody counted who is placed now."""
        question = self._questions.get(id(pod))
        if question is None or not self._moves.reaches(question.position):
            question = self._counted(pod)
        self._questions.move_to_end(id(pod))
        for _, placed, sign in self._moves.since(question.position):
            if placed is not None:
                for check in question.checks:
                    check.count(placed, sign)
        question.position = self._moves.position
        return question.checks

    def _counted(self, pod: Pod) -> _CountedRules:
        checks = interpod_checks(pod, (load.node for load in self._loads.values()))
        guests = list((self._guests if looks_at_pods(pod) else self._repelling).values())
        position = self._moves.position
        for guest in guests:
            load = self._loads.get(guest.node)
            if load is not None:
                for check in checks:
                    check.count(Placed(guest.pod, load.node), 1)
        question = self._questions[id(pod)] = _CountedRules(pod, checks, position)
        if len(self._questions) > MOST_QUESTIONS:
            self._questions.popitem(last=False)
        return question


def _broken(checks: Iterable[Check], node: Node) -> Refusal[PredicateRule] | None:
    """Return the first rule about other pods that keeps a pod off the node, None where there is none."""
    labels = node.metadata.labels
    return next((reason for check in checks if (reason := check.reason(labels)) is not None), None)


def _needs(spec: PodSpec, status: PodStatus = NEW_POD) -> _Needs:
    return _Needs(pod_requests(spec, status), host_ports(spec), disks(spec))
