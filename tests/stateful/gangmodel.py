"""A cluster for the tests of gangs: an API server that writes can fail on, and what others have been told by it."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from gputile.api.core import Node, ObjectMeta, Pod, PodCondition, SchedulingGate
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GANG_GATE,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_MEMORY,
    POD_GROUP_LABEL,
    RESERVATION_ANNOTATION,
)
from gputile.api.workloads import PodGroup, PodGroupSpec
from gputile.controlplane.controller.api_server import ApiServerWriter
from gputile.core.devices.allocation import Reservation, decode_allocation, reservation_of
from gputile.kube.errors import AnswerLost, Conflict, ConnectionFailed, NotFound
from gputile.kube.objects import Applied, Deleted
from tests.fakes.corebuilders import gpu_node, pod

NAMES = ("a", "b")
GPUS = 2
GPU_UNITS = 4
SECOND = 10**9


class Crash(Exception):
    """The controller dies."""


def node(name: str, unhealthy: Sequence[int] = ()) -> Node:
    sizes = [GPU_UNITS * 1024] * GPUS
    return gpu_node(
        name, mode="cgpu", sizes=sizes, unhealthy=unhealthy, allocatable={"cpu": "99", "pods": "99", GPU_MEMORY: "99"}
    )


def stamp(now_ns: int) -> str:
    """A time as the API server writes it."""
    return datetime.fromtimestamp(now_ns // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_pod(name: str, units: int, labels: dict[str, str], now_ns: int) -> Pod:
    """A pod as the webhook leaves it: one of a gang waits behind its gate, unless it asks for no GPU."""
    asking = pod(name, mem=units) if units else pod(name)
    created = stamp(now_ns)
    meta = msgspec.structs.replace(asking.metadata, labels=labels, creation_timestamp=created)
    gates = (SchedulingGate(name=GANG_GATE),) if labels and units else ()
    return msgspec.structs.replace(
        asking, metadata=meta, spec=msgspec.structs.replace(asking.spec, scheduling_gates=gates)
    )


def annotated(changed: Pod, **annotations: str | None) -> Pod:
    """Return the pod with annotations set, or removed where they are None."""
    wanted = {RESERVATION_ANNOTATION if key == "hold" else key: text for key, text in annotations.items()}
    kept = {key: text for key, text in changed.metadata.annotations.items() if key not in wanted}
    kept |= {key: text for key, text in wanted.items() if text is not None}
    return msgspec.structs.replace(changed, metadata=msgspec.structs.replace(changed.metadata, annotations=kept))


def units_of(asking: Pod) -> int:
    """Return for how many units a pod asks, 0 for one that asks for no GPU."""
    return int(asking.spec.containers[0].resources.limits.get(GPU_MEMORY, 0))


def gang_name(one: Pod) -> str:
    labels = one.metadata.labels
    return labels.get(POD_GROUP_LABEL) or labels.get(GANG_NAME_LABEL, "")


def labelled_size(pods: Iterable[Pod], min_members: Mapping[str, int]) -> int:
    """Return how many pods of one gang start together by its labels or its PodGroup; 0 where neither tells."""
    return max(
        min_members.get(each.metadata.labels[POD_GROUP_LABEL], 0)
        if POD_GROUP_LABEL in each.metadata.labels
        else int(each.metadata.labels[GANG_SIZE_LABEL])
        for each in pods
    )


def pod_group(name: str, min_member: int) -> PodGroup:
    return PodGroup(ObjectMeta(name=name, namespace="default"), PodGroupSpec(min_member))


def runs(one: Pod) -> bool:
    return bool(one.spec.node_name) and not one.finished


def waits(one: Pod) -> bool:
    return not one.spec.node_name and not one.finished


def live_hold(one: Pod, now_ns: int) -> Reservation | None:
    """Return the place that is kept for a pod which waits."""
    hold = reservation_of(one) if waits(one) else None
    return hold if hold is not None and hold.expires_ns > now_ns else None


def held_units(pods: Iterable[Pod], now_ns: int | None) -> dict[str, int]:
    """Return how many units of each GPU pods hold; with ``now_ns``, those that are kept then count too."""
    held: dict[str, int] = {}
    for each in pods:
        allocation = None
        if not units_of(each):
            continue
        if runs(each):
            allocation = decode_allocation(each.metadata.annotations[ALLOCATION_ANNOTATION])
        elif now_ns is not None and (hold := live_hold(each, now_ns)) is not None:
            allocation = hold.allocation
        for share in allocation.gpus if allocation else ():
            held[share.uuid] = held.get(share.uuid, 0) + share.mib // 1024
    return held


def healthy_gpus(nodes: Iterable[str], unhealthy: dict[str, Sequence[int]]) -> list[str]:
    return [f"GPU-{name}-{i}" for name in nodes for i in range(GPUS) if i not in unhealthy.get(name, ())]


def packs(units: Sequence[int], free: Sequence[int]) -> bool:
    """Return whether all ``units`` fit into GPUs with ``free`` units: every way is tried."""
    if not units:
        return True
    first, rest = units[0], units[1:]
    for i, left in enumerate(free):
        if left >= first and left not in free[:i] and packs(rest, [*free[:i], left - first, *free[i + 1 :]]):
            return True
    return False


@dataclass
class Told:
    """The newest that somebody has been told of each pod."""

    pods: dict[str, Pod] = field(default_factory=dict)

    def hear(self, event: "Applied[Pod] | Deleted[Pod]") -> None:
        uid = event.object.metadata.uid
        if isinstance(event, Deleted):
            self.pods.pop(uid, None)
        else:
            self.see(event.object)

    def hear_list(self, pods: dict[str, Pod]) -> None:
        for uid in self.pods.keys() - pods.keys():
            del self.pods[uid]
        for each in pods.values():
            self.see(each)

    def see(self, one: Pod) -> None:
        before = self.pods.get(one.metadata.uid)
        if before is None or version_of(before) <= version_of(one):
            self.pods[one.metadata.uid] = one

    def of_plan(self, plan: str) -> list[Pod]:
        return [each for each in self.pods.values() if (hold := reservation_of(each)) is not None and hold.plan == plan]

    def of_gang(self, gang: str) -> list[Pod]:
        return [each for each in self.pods.values() if gang_name(each) == gang]


def version_of(one: Pod) -> int:
    return int(one.metadata.resource_version)


@dataclass
class Server(ApiServerWriter):
    """The API server: its objects, and what it tells watchers. ``told`` is what the controller was answered.

    ``late`` are writes that nobody waits for any more, and that are executed all the same, some time. ``gone`` are the
    UIDs of pods of which an answer has said that they are, before any watch did. ``born`` and ``bound`` are the
    versions at which pods came and were bound: times have seconds only. ``groups`` are the ``minMember`` of PodGroups.
    ``surprises`` counts the gates that were removed of pods with another reservation than the controller knew: a write
    of its own, whose answer was lost.
    """

    pods: dict[str, Pod] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    log: list[Applied[Pod] | Deleted[Pod]] = field(default_factory=list)
    version: int = 0
    fate: Callable[[], str] = lambda: "done"
    told: Told = field(default_factory=Told)
    before_ungate: Callable[[Pod], None] = lambda _: None
    late: list[tuple[Pod, str, Callable[[Pod], Pod]]] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    born: dict[str, int] = field(default_factory=dict)
    bound: dict[str, int] = field(default_factory=dict)
    surprises: int = 0
    ended: dict[str, int] = field(default_factory=dict)  # the version at which all pods of a gang had finished

    def store(self, changed: Pod) -> Pod:
        self.version += 1
        meta = msgspec.structs.replace(changed.metadata, resource_version=str(self.version))
        stored = msgspec.structs.replace(changed, metadata=meta)
        self.pods[stored.metadata.uid] = stored
        self.born.setdefault(stored.metadata.uid, self.version)
        if stored.spec.node_name:
            self.bound.setdefault(stored.metadata.uid, self.version)
        gang = gang_name(stored)
        if gang and all(each.finished for each in self.pods.values() if gang_name(each) == gang):
            self.ended[gang] = self.version
        self.log.append(Applied(stored))
        return stored

    def were_together(self, waiting: Pod, bound: Pod) -> bool:
        """Return whether ``waiting`` existed when ``bound`` was bound."""
        return self.born[waiting.metadata.uid] < self.bound[bound.metadata.uid]

    def is_of_ended_run(self, one: Pod) -> bool:
        """Return whether a pod has finished in a run of its gang that is over: others of the name start together."""
        return one.finished and self.bound.get(one.metadata.uid, 0) <= self.ended.get(gang_name(one), 0)

    def delete(self, uid: str) -> None:
        self.version += 1
        self.log.append(Deleted(self.pods.pop(uid)))

    # the controller's writes

    async def reserve(self, asked: Pod, text: str | None, nominated: str | None) -> Pod:
        return self._write(asked, lambda current: annotated(current, hold=text), asked.metadata.resource_version)

    async def ungate(self, asked: Pod) -> Pod:
        self.before_ungate(asked)
        stored = self._write(
            asked,
            lambda current: msgspec.structs.replace(
                current, spec=msgspec.structs.replace(current.spec, scheduling_gates=())
            ),
        )
        self.surprises += reservation_of(stored) != reservation_of(asked)
        return stored

    def _write(self, asked: Pod, change: Callable[[Pod], Pod], version: str = "") -> Pod:
        fate = self.fate()
        if fate == "crash":
            raise Crash
        if fate == "unreachable":
            raise ConnectionFailed("no connection")
        if fate == "never arrived":
            raise AnswerLost("no answer")
        if fate == "late":
            self.late.append((asked, version, change))
            raise AnswerLost("no answer")
        try:
            stored = self._execute(asked, change, version)
        except NotFound:
            if fate != "answer lost":
                self.gone.add(asked.metadata.uid)
                raise
        if fate == "answer lost":
            raise AnswerLost("no answer")
        self.told.see(stored)
        return stored

    def _execute(self, asked: Pod, change: Callable[[Pod], Pod], version: str) -> Pod:
        current = self.pods.get(asked.metadata.uid)
        if current is None:
            raise NotFound(404, "NotFound", "no such pod")
        if version not in ("", current.metadata.resource_version):
            raise Conflict(409, "Conflict", "the pod has changed")
        changed = change(current)
        return self.store(changed) if changed != current else current

    def late_writes_are_executed(self) -> None:
        for asked, version, change in self.late:
            with contextlib.suppress(NotFound, Conflict):
                self._execute(asked, change, version)
        self.late = []

    # the extender's

    def bind(self, uid: str, version: str, node: str, annotations: dict[str, str], now_ns: int) -> Pod | None:
        """Return the pod as it is bound at ``now_ns`` of the API server's clock; None where the Binding is refused."""
        current = self.pods.get(uid)
        if current is None or current.spec.node_name or version not in ("", current.metadata.resource_version):
            return None
        scheduled = PodCondition(type="PodScheduled", status="True", last_transition_time=stamp(now_ns))
        bound = msgspec.structs.replace(
            annotated(current, **annotations),
            spec=msgspec.structs.replace(current.spec, node_name=node),
            status=msgspec.structs.replace(current.status, conditions=(scheduled,)),
        )
        return self.store(bound)

    async def evict(self, namespace: str, name: str, uid: str, why: str) -> None:
        raise AssertionError(f"all pods are of the same priority, and {name} is to leave")

    def a_round_is_over(self) -> None:
        """What answers said to be gone is so for the next round: all writes of one are decided before the first."""
        for uid in self.gone:
            self.told.pods.pop(uid, None)
        self.gone = set()

    def record(self, about: Pod | Node, reason: str, message: str, *, warning: bool) -> None:
        assert message
