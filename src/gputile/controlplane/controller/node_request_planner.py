"""Decides how many new nodes of which type are requested from the cluster's autoscaler.

This planner only decides, without I/O and without a clock. ``placeholders`` writes the decisions:
it creates and deletes placeholder pods, for which the autoscaler adds nodes.

A node is requested for a pod that fits no GPU, or that has no room when its gang is planned. The
pod must also fit an empty node of a type that the autoscaler can add. The autoscaler adds a node by
itself if a pod has no scheduling gate, and no node has enough free resources in total for the pod.
So nodes are requested only for the other pods.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.conversion import unix_seconds
from gputile.api.core import Pod
from gputile.api.well_known import EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.controlplane.controller.gang_round import GangEvent
from gputile.controlplane.controller.placeholders import (
    NodeRequestRound,
    Placeholders,
    TypeNodes,
    nodes_by_type,
)
from gputile.core.devices.gang_membership import gang_of, scheduling_order
from gputile.core.devices.node_type import node_types_of, refusals_text
from gputile.core.devices.request import RequestError
from gputile.core.refusal import NodeTypeRule, Refusal, refusal_by
from gputile.core.scheduling.gang_plan import GangCandidate
from gputile.core.scheduling.new_nodes import (
    BarredTypes,
    NewNodes,
    as_described,
    expected_nodes,
    new_nodes,
    nodes_added_by_autoscaler,
)

_SECOND: Final = 10**9
# how long a pod is left to kube-scheduler and preemption before a node is requested
SETTLING_SECONDS: Final = 5.0
MOST_PODS: Final = 256  # per round, plus the remaining pods of the last gang
_MOST_IDLE: Final = 100  # idle nodes of a type that get placeholders
_LONGEST_BACKOFF_NS: Final = 3600 * _SECOND
_REPEATED_NS: Final = 1800 * _SECOND  # the API server forgets an event after an hour
_ADDED_ANYWAY: Final = (
    "the pod requests more than any node has free, so the autoscaler adds a node by itself; if no "
    "node appears, see the events and the log of the autoscaler"
)
_BEYOND_MOST: Final = (
    "no GPU has room for the pod, and autoscaling.mostNodes nodes are already requested for other "
    "pods: wait, or raise autoscaling.mostNodes"
)


@dataclass(slots=True)
class _NodeAttempt:
    """A period in which nodes of a type are requested without a break."""

    since_ns: int
    newest_ns: int  # when the newest node was created
    joined: int = 0  # nodes that have joined
    wanted: int = 0  # pods that have wanted a node
    uids: set[str] = field(default_factory=set)  # the pods that have wanted a node and still exist


class NodeBackoff:
    """Limits how often nodes of a type are requested for a waiting pod.

    Times are Unix time in nanoseconds. An attempt begins when nodes of a type are requested, for
    any pods. The attempt ends when no more nodes are requested, when a node has joined for each pod
    that wanted one, or when no node has joined for ``wait_ns``. In the last case, it counts as two
    attempts, so that another type is tried next. An attempt does not count if the requests ended
    before any node joined. The second attempt may follow at once. After it, the pod backs off for
    ``wait_ns``. The back-off doubles with each further attempt, up to an hour.
    """

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._attempts: dict[str, _NodeAttempt] = {}  # by type
        # the number of attempts and their latest end, by UID and type
        self._ended: dict[tuple[str, str], tuple[int, int]] = {}

    def is_backing_off(self, uid: str, type_name: str, now_ns: int) -> bool:
        times, at_ns = self._ended.get((uid, type_name), (0, 0))
        if times < 2:
            return False
        longest_ns = max(self._wait_ns, _LONGEST_BACKOFF_NS)
        return 0 <= now_ns - at_ns < min(self._wait_ns << min(times - 2, 10), longest_ns)

    def advance(
        self, type_name: str, uids: Set[str], created_ns: Sequence[int], now_ns: int
    ) -> bool:
        """Record which pods want new nodes of a type. Return whether nodes may be requested.

        ``created_ns`` contains the creation times of all nodes of the type.
        """
        if not uids and type_name not in self._attempts:
            return False
        newest_ns = max(created_ns, default=0)
        attempt = self._attempts.setdefault(type_name, _NodeAttempt(now_ns, newest_ns))
        attempt.joined += sum(each > attempt.newest_ns for each in created_ns)
        attempt.newest_ns = max(attempt.newest_ns, newest_ns)
        attempt.wanted += len(uids - attempt.uids)
        attempt.uids |= uids
        late = bool(uids) and now_ns - max(attempt.since_ns, attempt.newest_ns) >= self._wait_ns
        if uids and not late and attempt.joined < attempt.wanted:
            return True
        del self._attempts[type_name]
        if late or attempt.joined:
            for key in ((uid, type_name) for uid in attempt.uids):
                times, _ = self._ended.get(key, (0, 0))
                self._ended[key] = times + (2 if late else 1), now_ns
        return False

    def forget_gone(self, exists: Callable[[str], bool]) -> None:
        """Forget the pods for which ``exists`` returns False."""
        self._ended = {key: ended for key, ended in self._ended.items() if exists(key[0])}
        for attempt in self._attempts.values():
            attempt.uids = set(filter(exists, attempt.uids))


class NodeRequestPlanner:
    """Plans node requests in rounds. Its memory is bounded by the pods of the cluster."""

    def __init__(
        self, configuration: Configuration, gangs: GangPlanner, placeholders: Placeholders
    ) -> None:
        self._state = ClusterState(configuration)  # the snapshot of the latest round
        self._gangs, self._placeholders = gangs, placeholders
        self._configuration = configuration
        self._wait_seconds = configuration.autoscaling.wait_seconds
        self._types = node_types_of(configuration)
        self._backoff = NodeBackoff(self._wait_seconds * _SECOND)
        # the latest message and its time (ns), by UID and reason
        self._reported: dict[tuple[str, EventReason], tuple[str, int]] = {}
        # the time (ns) at which all node types last refused a pod, by UID
        self._refused_at: dict[str, int] = {}
        self._covered = set[str]()  # existing nodes on which the autoscaler puts placeholders
        self.requested = 0  # nodes, in the latest round
        self.refused = 0  # pods that no node type accepts, in the latest round

    def plan(self, state: ClusterState) -> NodeRequestRound:
        """Plan a round on the snapshot ``state``."""
        self._state = state
        result = NodeRequestRound(state.now_ns)
        existing = self._placeholders.by_type(state.waiting.placeholders, state.now_ns)
        if not (state.waiting.refused or existing or self._gangs.without_room or self.requested):
            self.refused, self._covered = 0, set()
            return result
        nodes = nodes_by_type(state, self._types, self._wait_seconds * _SECOND)
        pods = self._pods_without_room()
        found, wanted = self._wanted(pods, nodes)
        covered = self._covered_by_type(found, wanted, nodes)
        for kind in self._types:
            jobs = existing.pop(kind.name, [])
            target = wanted[kind.name] + min(len(covered[kind.name]), _MOST_IDLE)
            result.deleted += jobs[: max(0, len(jobs) - target)]
            result.created += [kind] * (target - len(jobs))
        # Delete Jobs of types that are no longer configured.
        result.deleted += (job for jobs in existing.values() for job in jobs)
        self._covered = set[str]().union(*covered.values())
        self.refused, self.requested = len(found.refused), wanted.total()
        before = {
            uid: refused_ns
            for uid, refused_ns in self._refused_at.items()
            if uid not in found.types and state.knows(uid)
        }
        self._refused_at = before | dict.fromkeys(found.refused, state.now_ns)
        self._reported = {
            key: event for key, event in self._reported.items() if state.knows(key[0])
        }
        self._backoff.forget_gone(state.knows)
        for each in pods:
            self._report(each.pod, found, wanted, result)
        return result

    def is_covered(self, node: str) -> bool:
        return node in self._covered

    def forget(self) -> None:
        """Forget earlier requests and events, because another replica may have led meanwhile."""
        self._reported, self._backoff = {}, NodeBackoff(self._wait_seconds * _SECOND)

    # -- pods without room

    def _waited_seconds(self, pod: Pod) -> float:
        return self._state.now_ns / _SECOND - unix_seconds(pod.metadata.creation_timestamp)

    def _pods_without_room(self) -> list[GangCandidate]:
        """Return the pods that no node has room for, by priority and age.

        Pods that no node type accepted come last. Among these, the pod whose refusal is oldest
        comes first. The pods of a gang stay together.
        """
        groups: dict[Hashable, list[Pod]] = {}
        for pod in self._gangs.without_room:
            groups.setdefault(gang_of(pod), []).append(pod)
        for pod in self._state.waiting.refused.values():
            if self._waited_seconds(pod) >= SETTLING_SECONDS:
                groups[pod.metadata.uid] = [pod]

        def order(pods: Sequence[Pod]) -> tuple[int, object]:
            refused_ns = max(self._refused_at.get(pod.metadata.uid, 0) for pod in pods)
            return refused_ns, scheduling_order(pods[0])

        found: list[GangCandidate] = []
        for pods in sorted(groups.values(), key=order):
            if len(found) >= MOST_PODS:
                break
            is_single = pods[0].metadata.uid in groups
            for pod in pods[:MOST_PODS]:
                try:
                    each = GangCandidate(pod, self._state.placement.engine.request(pod))
                except RequestError:
                    continue  # the extender reports the error
                if not is_single or self._has_no_feasible_node(each):
                    found.append(each)
        return found

    def _has_no_feasible_node(self, each: GangCandidate) -> bool:
        # A pod with a booking is preempting or being bound.
        if each.request is None or self._state.ledger.booking(each.pod.metadata.uid) is not None:
            return False
        placement = self._state.placement
        return not placement.engine.filter(
            each.request, placement.predicates.open_nodes(each.pod)
        ).feasible

    # -- how many nodes are wanted

    def _wanted(
        self, pods: Sequence[GangCandidate], nodes: Mapping[str, TypeNodes]
    ) -> tuple[NewNodes, Counter[str]]:
        """Return the plan of new nodes, and how many nodes of each type to request.

        Nodes that the autoscaler adds by itself are not counted. If ``autoscaling.mostNodes`` is
        too low for all pods, the first pods get nodes. Nodes that pods are expected to use soon are
        removed from ``TypeNodes.idle``.
        """
        state, barred = self._state, self._barred(pods, nodes)
        starting = {name: of_type.starting for name, of_type in nodes.items()}
        expected = {
            name: as_described(state.nodes[name], kind)
            for kind in self._types
            for name in nodes[kind.name].starting_for_karpenter
        }
        seen = [each for each in pods if not each.pod.spec.scheduling_gates]  # by the autoscaler
        places = expected_nodes(seen, state.placement.predicates, state.reserved_pods(), expected)
        unplaced = [each for each in seen if each.pod.metadata.uid not in places]

        def plan(part: Sequence[GangCandidate]) -> tuple[NewNodes, Counter[str]]:
            found = new_nodes(part, self._types, starting, self._configuration, barred)
            unasked = [each for each in unplaced if each.pod.metadata.uid in found.types]
            return found, found.counts - nodes_added_by_autoscaler(
                unasked, self._types, self._configuration, barred
            )

        found, lacking = plan(pods)
        # Other pods must not rely on nodes that the autoscaler has not added in time. It may never
        # add them.
        expected_of_it = [each for each in unplaced if each.pod.metadata.uid in found.on_new]
        late = {
            _equivalence_key(each)
            for each in expected_of_it
            if self._waited_seconds(each.pod) >= self._wait_seconds
        }
        others = [
            each
            for each in pods
            if each.pod.spec.scheduling_gates or _equivalence_key(each) not in late
        ]
        if others and len(others) < len(pods):
            alone, lacking_alone = plan(others)
            lacking |= lacking_alone
            found.types.update(alone.types)
            found.on_new.difference_update(each.pod.metadata.uid for each in others)
            found.on_new.update(alone.on_new)
        new = {
            uid: found.types[uid]
            for uid in (each.pod.metadata.uid for each in pods)
            if uid in found.on_new
        }
        wanted = Counter[str]()
        for name in new.values():
            if (
                wanted[name] < lacking[name]
                and wanted.total() < self._configuration.autoscaling.most_nodes
            ):
                wanted[name] += 1
        in_use = (set(places.values()) & expected.keys()) | self._gangs.starting_on
        for name, of_type in nodes.items():
            of_type.idle -= in_use
            uids = {uid for uid, chosen in new.items() if chosen == name and wanted[name]}
            if not self._backoff.advance(name, uids, of_type.created_ns, state.now_ns) and uids:
                return self._wanted(pods, nodes)  # other types are tried
        return found, wanted

    def _barred(self, pods: Sequence[GangCandidate], nodes: Mapping[str, TypeNodes]) -> BarredTypes:
        """Return why no node of a type is requested for a pod, by UID and type.

        A type is barred for a pod if the existing nodes of the type would not accept the pod. A
        type is also barred while the pod backs off from requests for the type.
        """
        barred: dict[tuple[str, str], Refusal[NodeTypeRule]] = {}
        for kind in self._types:
            usable = nodes[kind.name].usable
            for each in pods:
                key = each.pod.metadata.uid, kind.name
                if usable and (why := self._obstacle(each, usable)) is not None:
                    barred[key] = why
                elif self._backoff.is_backing_off(*key, self._state.now_ns):
                    barred[key] = refusal_by(NodeTypeRule.PAUSED)
        return barred

    def _obstacle(self, each: GangCandidate, usable: Sequence[str]) -> Refusal[NodeTypeRule] | None:
        """Return why the ``usable`` nodes of a type would reject the pod even if empty, or None."""
        empty = self._state.empty_placement
        if each.request is None:
            return None
        open_nodes = set(empty.predicates.open_alone(each.pod))
        accepting = [name for name in usable if name in open_nodes]
        if not accepting:
            why = empty.predicates.reason(each.pod, usable[0])
            return refusal_by(
                NodeTypeRule.TOO_LITTLE, node=usable[0], wanted=why.text if why else ""
            )
        if empty.engine.filter(each.request, accepting).feasible:
            return None
        return refusal_by(NodeTypeRule.NOT_AS_DESCRIBED, node=accepting[0])

    # -- placeholders for idle nodes

    def _covered_by_type(
        self, found: NewNodes, wanted: Counter[str], nodes: Mapping[str, TypeNodes]
    ) -> dict[str, set[str]]:
        """Return, by type, the idle nodes that each need an additional placeholder.

        An autoscaler puts placeholders on idle nodes before it adds nodes. Without placeholders,
        the autoscaler would also remove idle nodes on which a waiting gang has room.
        """
        hopeful = {
            gang_of(pod) for pod in self._gangs.without_room if pod.metadata.uid in found.types
        }
        with_room = {
            node
            for gang in hopeful
            if gang is not None
            for node in self._gangs.searches.nodes_with_room(gang)
        }
        return {
            name: each.idle if wanted[name] or each.idle & with_room else set()
            for name, each in nodes.items()
        }

    # -- events

    def _report(
        self, pod: Pod, found: NewNodes, wanted: Counter[str], result: NodeRequestRound
    ) -> None:
        """Record an event about a pod, unless the event repeats a recent one."""
        uid, reason = pod.metadata.uid, EventReason.NODE_NOT_ADDED
        type_name, late = found.types.get(uid, ""), self._waited_seconds(pod) >= self._wait_seconds
        if (why := found.refused.get(uid)) is not None:
            if not any(refusal.rule is NodeTypeRule.PAUSED for refusal in why.values()):
                reason = EventReason.NO_NODE_TYPE_FITS
            whys = refusals_text(why)
            text = f"no GPU has room for the pod, and no node is requested for it: {whys}"
        elif uid not in found.on_new:
            return
        elif wanted[type_name]:
            reason = EventReason.NODE_REQUESTED
            text = (
                f"no GPU has room for the pod: a node with the label {type_name} is requested "
                f"from the autoscaler"
            )
        elif late:
            text = (
                _ADDED_ANYWAY
                if self.requested < self._configuration.autoscaling.most_nodes
                else _BEYOND_MOST
            )
        else:
            return
        last, at_ns = self._reported.get((uid, reason), ("", 0))
        if last != text or self._state.now_ns - at_ns >= _REPEATED_NS:
            self._reported[uid, reason] = text, self._state.now_ns
            result.events.append(
                GangEvent((pod,), reason, text, reason is not EventReason.NODE_REQUESTED)
            )


def _equivalence_key(each: GangCandidate) -> Hashable:
    """Return a key. Pods with equal keys make an autoscaler add the same kind of node."""
    return each.pod.metadata.namespace, each.request
