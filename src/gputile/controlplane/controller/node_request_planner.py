"""Plans one round of asking for nodes: which placeholders to create and to delete, and what to say.

No I/O, no clock.

A pod is a reason for a new node if no GPU of any node has room for it, or if its gang lacks room for it, and an
empty node of a type that the autoscaler can add would take it. The autoscaler sees pods without a gate itself, and
adds nodes for those that do not fit the sums of any node; placeholders ask for the rest.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gputile.api.core import Pod
from gputile.api.reasons import EventReason
from gputile.api.timestamps import unix_seconds
from gputile.api.well_known import NODE_TYPE_ANNOTATION
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangEvent, GangPlanner
from gputile.controlplane.controller.placeholders import JOB_LABEL, placeholder_job
from gputile.controlplane.controller.waiting_pods import WaitingPods
from gputile.core.devices.node_type import NodeType, node_types_of
from gputile.core.devices.node_type_refusal import NodeTypeRefusal, NodeTypeRule, worded
from gputile.core.devices.request import RequestError
from gputile.core.placement.steps import Steps
from gputile.core.scheduling.gang_kinds import GangCandidate
from gputile.core.scheduling.gang_rules import in_line
from gputile.core.scheduling.new_nodes import BarredTypes, NewNodes, new_nodes, nodes_unasked

_SECOND: Final = 10**9
SETTLING_SECONDS: Final = 5.0  # so long kube-scheduler and preemption may take to find a place
MOST_PODS: Final = 256  # that are looked at in one round, those first in line
_LONGEST_PAUSE_SECONDS: Final = 3600
_PAUSES: Final = (NodeTypeRule.PAUSED, NodeTypeRule.NO_INVENTORY)


@dataclass(slots=True)
class NodeRequestRound:
    """What a round decided: Jobs of placeholders to create, names of Jobs to delete, and what to say.

    ``unmarked`` are placeholders that autoscalers cannot see yet.
    """

    created: list[Mapping[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unmarked: list[Pod] = field(default_factory=list)
    events: list[GangEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Failed:
    """How often in a row no node of a type came with GPUs, and for how long and until when none is asked for (ns).

    ``again_ns`` is Unix time. By a clock that was set back it is further away than the pause is long: then none is on.
    ``bare_node`` is the node without GPUs that came the last time, "" where none is known.
    """

    times: int
    pause_ns: int
    again_ns: int
    bare_node: str

    @property
    def refusal(self) -> NodeTypeRefusal:
        """Why no node of the type is asked for."""
        if self.bare_node:
            return NodeTypeRefusal(NodeTypeRule.NO_INVENTORY, self.bare_node)
        return NodeTypeRefusal(NodeTypeRule.PAUSED)


@dataclass(slots=True)
class _TypeNodes:
    """The nodes of one type: those with GPUs, one of these with healthy GPUs only, and how many have just joined."""

    with_gpus: list[str] = field(default_factory=list)
    healthy: str = ""
    starting: int = 0


class NodeRequestPlanner:
    """Decides round by round what is asked for; ``new_name`` gives each placeholder a name of its own.

    What exists is read from the cluster each time.
    """

    def __init__(
        self, cluster_state: ClusterState, waiting: WaitingPods, gangs: GangPlanner, new_name: Callable[[], str]
    ) -> None:
        self._new_name = new_name
        self._cluster_state = cluster_state
        self._waiting = waiting
        self._gangs = gangs
        self._configuration = cluster_state.ledger.configuration
        self._scaling = self._configuration.autoscaling
        self._types = node_types_of(self._configuration)
        self._created: dict[str, tuple[str, int]] = {}  # Job that has no pod yet -> its type, and when that counts out
        self._deleted: set[str] = set()
        self._failed: dict[str, _Failed] = {}
        self._bare: dict[str, tuple[str, int]] = {}  # node without GPUs -> its type, when it was first seen so, Unix ns
        self._given_up: set[str] = set()  # nodes that have offered no GPUs for so long that their types have failed
        self._equipped: set[str] = set()  # nodes of the types with GPUs
        self._told: dict[str, set[EventReason]] = {}  # UID -> reasons of events
        self._refused = 0

    @property
    def refused(self) -> int:
        """How many pods without a place no node type could take, in the last round."""
        return self._refused

    def requested(self) -> Counter[str]:
        """Return how many nodes of each type are asked for."""
        jobs = {_job(pod) for pod in self._waiting.placeholders.values()}
        found = Counter(pod.metadata.annotations.get(NODE_TYPE_ANNOTATION, "") for pod in self._alive())
        return found + Counter(kind for job, (kind, _) in self._created.items() if job not in jobs)

    def steps(self, now_ns: int) -> Steps[NodeRequestRound]:
        """Return, in steps, what to do now; the cluster state may not change meanwhile. ``now_ns`` is Unix time in ns.

        Whoever gives up half-way closes the steps.
        """
        result = NodeRequestRound()
        self._forget(now_ns)
        if not (self._waiting.waiting or self._waiting.placeholders or self._gangs.without_room()):
            self._refused, self._bare = 0, {}
            return result
        alone = yield from self._without_place(now_ns)
        gangs = [each for pod in self._gangs.without_room()[:MOST_PODS] if (each := self._candidate(pod)) is not None]
        yield
        pods = [*alone, *gangs]
        nodes = yield from self._nodes_of_types(now_ns)
        self._take_timeouts(now_ns, result)
        barred = yield from self._barred(pods, nodes, now_ns)
        starting = {name: each.starting for name, each in nodes.items()}
        found = yield from new_nodes(pods, self._types, starting, self._configuration, barred)
        # What the autoscaler has seen for so long and not added is asked for like the rest.
        fresh = [each for each in alone if _age(each.pod, now_ns) < self._scaling.wait_seconds]
        predicates = self._cluster_state.placement.predicates
        unasked = yield from nodes_unasked(fresh, self._types, predicates, self._configuration)
        wanted = found.counts - unasked
        self._adjust(wanted, now_ns, result)
        self._refused = len(found.refused)
        self._tell(pods, found, wanted, result)
        return result

    def abandon(self) -> None:
        """Forget what was decided in a round of which nothing is written."""
        self._created.clear()
        self._deleted.clear()
        self._told.clear()

    # -- what there is

    def _candidate(self, pod: Pod) -> GangCandidate | None:
        try:
            return GangCandidate(pod, self._cluster_state.placement.engine.request(pod))
        except RequestError:
            return None  # the extender tells

    def _without_place(self, now_ns: int) -> Steps[list[GangCandidate]]:
        """Return the pods that no node takes as things stand."""
        found: list[GangCandidate] = []
        placement = self._cluster_state.placement
        waiting = sorted(self._waiting.waiting.values(), key=in_line)
        settled = (pod for pod in waiting if _age(pod, now_ns) >= SETTLING_SECONDS)
        for pod in settled:
            if len(found) == MOST_PODS:
                break
            each = self._candidate(pod)
            booked = self._cluster_state.ledger.booking(pod.metadata.uid)
            if each is None or each.request is None or booked is not None:  # booked: it preempts, or is being bound
                continue
            yield from placement.predicates.prepare(pod)
            names = [name for name, reason in placement.predicates.reasons(pod).items() if reason is None]
            if not placement.engine.filter(each.request, names).feasible:
                found.append(each)
            yield
        return found

    def _nodes_of_types(self, now_ns: int) -> Steps[dict[str, _TypeNodes]]:
        found, bare, equipped = {kind.name: _TypeNodes() for kind in self._types}, self._bare, self._equipped
        self._bare, self._equipped = {}, set()
        ledger, wait_ns = self._cluster_state.ledger, self._scaling.wait_seconds * _SECOND
        for name, node in self._cluster_state.nodes.items():
            kind = next((kind for kind in self._types if kind.has(node)), None)
            if kind is None:
                continue
            yield
            row, nodes = ledger.row_of.get(name), found[kind.name]
            info = ledger.node_info(row) if row is not None else None
            if info is not None and info.inventory.gpus:
                nodes.with_gpus.append(name)
                if all(gpu.healthy for gpu in info.inventory.gpus):
                    nodes.healthy = nodes.healthy or name
                self._equipped.add(name)
                if name not in equipped:
                    self._failed.pop(kind.name, None)
                continue
            _, since_ns = self._bare[name] = bare.get(name, (kind.name, now_ns))
            if name in self._given_up:
                continue
            if abs(now_ns - since_ns) < wait_ns:
                nodes.starting += 1
            else:
                self._given_up.add(name)
                self._fail(kind.name, now_ns, name)
        gone = {name: kind_name for name, (kind_name, _) in bare.items() if name not in self._cluster_state.nodes}
        for kind_name in {kind_name for name, kind_name in gone.items() if name not in self._given_up}:
            self._fail(kind_name, now_ns)  # it went away again without having had GPUs
        self._given_up &= self._bare.keys()
        return found

    # -- which types may be asked for

    def _barred(
        self, pods: Sequence[GangCandidate], nodes: Mapping[str, _TypeNodes], now_ns: int
    ) -> Steps[BarredTypes]:
        """Return by UID and type why no node of the type is asked for that pod, though one as described would do."""
        barred: dict[tuple[str, str], NodeTypeRefusal] = {}
        engine = self._cluster_state.empty_placement.engine
        for kind in self._types:
            there, failed = nodes[kind.name], self._failed.get(kind.name)
            for each in pods:
                key = each.pod.metadata.uid, kind.name
                if failed is not None and 0 < failed.again_ns - now_ns <= failed.pause_ns:
                    barred[key] = failed.refusal
                elif there.healthy and each.request is not None:
                    fits = engine.filter(each.request, there.with_gpus).feasible
                    if not fits:
                        barred[key] = NodeTypeRefusal(NodeTypeRule.NOT_AS_DESCRIBED, there.healthy)
                    yield
        return barred

    def _fail(self, kind_name: str, now_ns: int, bare_node: str = "") -> None:
        """Ask for no node of a type for a while, each time for longer; it may be due to a node without GPUs."""
        wait_ns = self._scaling.wait_seconds * _SECOND
        times = self._failed[kind_name].times + 1 if kind_name in self._failed else 1
        pause_ns = min(wait_ns << min(times - 1, 10), max(wait_ns, _LONGEST_PAUSE_SECONDS * _SECOND))
        self._failed[kind_name] = _Failed(times, pause_ns, now_ns + pause_ns, bare_node)

    def _take_timeouts(self, now_ns: int, result: NodeRequestRound) -> None:
        """Give up placeholders that no node came for."""
        late = {
            pod.metadata.annotations.get(NODE_TYPE_ANNOTATION, "")
            for pod in self._alive()
            if _age(pod, now_ns) > self._scaling.wait_seconds
        }
        for name in late:
            self._fail(name, now_ns)
        for pod in self._alive():
            if pod.metadata.annotations.get(NODE_TYPE_ANNOTATION, "") in late:
                self._delete(_job(pod), result)

    # -- what is asked for

    def _adjust(self, wanted: Counter[str], now_ns: int, result: NodeRequestRound) -> None:
        """Have as many placeholders of each type as nodes are wanted."""
        requested, kinds = self.requested(), {kind.name: kind for kind in self._types}
        for name in requested.keys() | wanted.keys():
            more = wanted[name] - requested[name]
            for _ in range(more):
                self._create(kinds[name], now_ns, result)
            alive = [pod for pod in self._alive() if pod.metadata.annotations.get(NODE_TYPE_ANNOTATION, "") == name]
            for pod in sorted(alive, key=lambda pod: pod.metadata.creation_timestamp or "")[: max(0, -more)]:
                self._delete(_job(pod), result)
        result.unmarked = [pod for pod in self._alive() if not pod.status.conditions]

    def _alive(self) -> list[Pod]:
        return [pod for pod in self._waiting.placeholders.values() if _job(pod) not in self._deleted]

    def _create(self, kind: NodeType, now_ns: int, result: NodeRequestRound) -> None:
        name, wait = f"gputile-placeholder-{self._new_name()}", self._scaling.wait_seconds
        result.created.append(placeholder_job(name, kind, wait))
        # Also one whose answer is lost counts: two placeholders for one node would bring two.
        self._created[name] = kind.name, now_ns + wait * _SECOND

    def _delete(self, job: str, result: NodeRequestRound) -> None:
        self._deleted.add(job)
        result.deleted.append(job)

    def not_deleted(self, job: str) -> None:
        """Note that a Job could not be deleted; the next round tries again."""
        self._deleted.discard(job)

    def _forget(self, now_ns: int) -> None:
        """Drop what was remembered of placeholders and pods that are gone."""
        jobs, wait_ns = {_job(pod) for pod in self._waiting.placeholders.values()}, self._scaling.wait_seconds * _SECOND
        self._deleted &= jobs
        self._created = {
            job: (kind, ends_ns)
            for job, (kind, ends_ns) in self._created.items()
            if job not in jobs and 0 < ends_ns - now_ns <= wait_ns
        }

    # -- what is said

    def _tell(
        self, pods: Sequence[GangCandidate], found: NewNodes, wanted: Collection[str], result: NodeRequestRound
    ) -> None:
        uids = {each.pod.metadata.uid for each in pods}
        self._told = {uid: reasons for uid, reasons in self._told.items() if uid in uids}
        for each in pods:
            uid = each.pod.metadata.uid
            kind, why = found.types.get(uid), found.refused.get(uid)
            if why is not None:
                paused = any(refusal.rule in _PAUSES for refusal in why.values())
                reason = EventReason.NODE_NOT_ADDED if paused else EventReason.NO_NODE_TYPE_FITS
                text = f"no node is asked for that could take the pod: {worded(why)}"
                self._say(each.pod, reason, text, result, warning=True)
            elif kind is not None and kind in wanted:
                text = f"no GPU has room for the pod: the autoscaler is asked for a node with the label {kind}"
                self._say(each.pod, EventReason.NODE_REQUESTED, text, result, warning=False)

    def _say(self, pod: Pod, reason: EventReason, text: str, result: NodeRequestRound, *, warning: bool) -> None:
        told = self._told.setdefault(pod.metadata.uid, set())
        if reason not in told:
            told.add(reason)
            result.events.append(GangEvent((pod,), reason, text, warning))


def _age(pod: Pod, now_ns: int) -> float:
    """Return how far from now a pod was created, seconds: by a clock that was set back, it is still to come."""
    return abs(now_ns / _SECOND - unix_seconds(pod.metadata.creation_timestamp))


def _job(pod: Pod) -> str:
    return pod.metadata.labels.get(JOB_LABEL, "")
