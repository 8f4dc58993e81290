"""What kube-scheduler itself would check before and beside the GPU decision, so that a what-if tells the truth.

Volumes, host ports and resource claims are not looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gputile.api.core import Node, Pod, PodSpec
from gputile.intree.interpod import Placed, hard_spread, interpod_checks, repels
from gputile.intree.nodefit import avoided_taints, preferred_weight, static_reasons
from gputile.intree.podrequests import PODS, Amounts, insufficient, node_allocatable, pod_requests

TAINT_WEIGHT, AFFINITY_WEIGHT = 3, 2  # kube-scheduler's default weights of the two score plugins
_MOST_TEMPLATES = 1024


@dataclass(slots=True)
class _Template:
    """What is the same for all pods of one spec: its needs, and the static reason per node position."""

    spec: PodSpec
    needs: Amounts
    reasons: list[str | None]


@dataclass(slots=True)
class _Load:
    """A node and what its pods take of it."""

    node: Node
    allocatable: Amounts
    used: Amounts = field(default_factory=dict)


class Predicates:
    """The in-tree scheduler's view of a cluster: place pods in it, and ask where another may go."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = list(nodes)
        self._loads = [_Load(node, node_allocatable(node)) for node in nodes]
        self._position = {node.metadata.name: i for i, node in enumerate(nodes)}
        self._placed: dict[str, Placed] = {}
        self._repelling: dict[str, Placed] = {}
        self._templates: dict[int, _Template] = {}

    def place(self, pod: Pod, node_name: str) -> None:
        """Count ``pod`` as running on the node, under its UID. An unknown node or a finished pod counts nothing."""
        position = self._position.get(node_name)
        if position is None or pod.finished or pod.metadata.uid in self._placed:
            return
        load = self._loads[position]
        _count(load, pod, 1)
        self._placed[pod.metadata.uid] = Placed(pod, load.node)
        if repels(pod):
            self._repelling[pod.metadata.uid] = self._placed[pod.metadata.uid]

    def remove(self, uid: str) -> str:
        """Count a pod no longer; return the node that it was on, "" for none."""
        placed = self._placed.pop(uid, None)
        self._repelling.pop(uid, None)
        if placed is not None:
            _count(self._loads[self._position[placed.node.metadata.name]], placed.pod, -1)
        return placed.node.metadata.name if placed is not None else ""

    def reasons(self, pod: Pod) -> dict[str, str | None]:
        """Return for each node, in order, why the pod may not go there; None where it may."""
        template = self._template(pod.spec)
        checks = []
        if self._repelling or hard_spread(pod) or _looks_at_pods(pod.spec):
            checks = interpod_checks(pod, list(self._placed.values()), self._repelling.values(), self._nodes)
        answers: dict[str, str | None] = {}
        for load, static in zip(self._loads, template.reasons, strict=True):
            reason = static or insufficient(template.needs, load.used, load.allocatable)
            if reason is None and checks:
                found = (check(load.node.metadata.labels) for check in checks)
                reason = next((text for text in found if text is not None), None)
            answers[load.node.metadata.name] = reason
        return answers

    def scores(self, pod: Pod, node_names: Sequence[str]) -> dict[str, int]:
        """Return 0 to 500 per node for what the pod prefers: its node affinity, and few PreferNoSchedule taints.

        Each part is stretched to 0..100 over the nodes asked, as kube-scheduler does, and weighted as it does.
        """
        nodes = [self._loads[self._position[name]].node for name in node_names]
        wanted = [preferred_weight(pod.spec, node) for node in nodes]
        avoided = [avoided_taints(pod.spec, node) for node in nodes]
        most_wanted, most_avoided = max(wanted, default=0) or 1, max(avoided, default=0) or 1
        return {
            name: AFFINITY_WEIGHT * (100 * want // most_wanted) + TAINT_WEIGHT * (100 - 100 * avoid // most_avoided)
            for name, want, avoid in zip(node_names, wanted, avoided, strict=True)
        }

    def _template(self, spec: PodSpec) -> _Template:
        template = self._templates.get(id(spec))
        if template is None:
            if len(self._templates) == _MOST_TEMPLATES:
                self._templates.clear()
            template = _Template(spec, pod_requests(spec), static_reasons(spec, self._nodes))
            self._templates[id(spec)] = template
        return template


def _count(load: _Load, pod: Pod, sign: int) -> None:
    for name, amount in (*pod_requests(pod.spec).items(), (PODS, 1)):
        load.used[name] = load.used.get(name, 0) + sign * amount


def _looks_at_pods(spec: PodSpec) -> bool:
    affinity = spec.affinity
    return affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
