"""Completes the victims that kube-scheduler proposes on a node, so that a request fits its GPUs.

kube-scheduler's dry run counts units of the whole node; it cannot see that they are on different GPUs. Here its
victims are completed until one GPU, or as many as the pod asks, really has room, and those that need not leave
are spared: also a proposed one for which others leave that free as much. kube-scheduler asks about
many nodes at once, so a pod that leaves costs a look at its own GPUs only.

kube-scheduler has a pod leave because a resource of the node lacks, or because the pod's ports, disks or rules about
other pods are in the way. Of the first kind is a pod that asks for resources only: others that free as much of each are
as good (``Interchange``). Resources of GPUs do not count there: whether the request fits its GPUs is judged beside it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop

from gputile.api.core import Pod
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.request import Request, RequestError
from gputile.core.kube_predicates.inter_pod import looks_at_pods
from gputile.core.kube_predicates.pod_requests import PODS, Amounts
from gputile.core.kube_predicates.ports_and_disks import exclusives
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import MIXED_GROUPS, NO_GROUP
from gputile.core.ledger.node_info import ServingMode
from gputile.core.ledger.snapshot import GpuState, NodeState
from gputile.core.placement.fit import gpu_fits, same_resource, serves
from gputile.core.scheduling.eviction_rules import EvictionFacts
from gputile.core.scheduling.placement_engine import PlacementEngine


class Interchange:
    """Which pods may leave for ``pod``, and which instead of others. ``facts`` are those of the bound pods, by UID."""

    def __init__(self, pod: Pod, facts: Mapping[str, EvictionFacts]) -> None:
        spec = pod.spec
        only_resources = not (exclusives(spec) or spec.claims or looks_at_pods(pod))
        self._facts = facts if only_resources else {}
        self._all_facts = facts

    def never_leaves(self, uid: str) -> bool:
        """Return whether a pod is static: its kubelet starts it again."""
        known = self._all_facts.get(uid)
        return known is not None and known.static

    def amounts(self, uid: str) -> Amounts | None:
        """Return what a pod takes of its node, its place as a pod included; None where nobody can leave instead."""
        known = self._facts.get(uid)
        return known.amounts | {PODS: 1} if known is not None and known.amounts is not None else None


_NO_GPU = ""  # of a pod whose GPUs nobody knows


@dataclass(frozen=True, slots=True)
class PreemptVerdict:
    """Whether evictions can help a pod, and what it asks of GPUs: None where any victims do, as it asks for none."""

    hopeless: bool
    request: Request | None = None


def judge_preemption(engine: PlacementEngine, pod: Pod) -> PreemptVerdict:
    """Return whether evictions can help ``pod``: not where its request is invalid, nor for a gang, which is planned."""
    try:
        request = engine.request(pod)
    except RequestError:
        return PreemptVerdict(hopeless=True)
    in_gang = engine.ledger.configuration.admission.gangs and gang_of(pod) is not None
    return PreemptVerdict(in_gang, request)


def victims(
    engine: PlacementEngine,
    request: Request,
    node: str,
    proposed: Iterable[str],
    priority: int,
    interchange: Interchange | None = None,
) -> frozenset[str] | None:
    """Return the UIDs of the pods that have to leave ``node``, None where no set of lower-priority pods is enough.

    ``proposed`` are the victims of the in-tree plugins: they leave if that is enough (they may be in the way for other
    reasons, CPU or memory). Else others are added from the lowest priority up, those first whose GPU has the least left
    on it, and taken back from the highest down where the pod fits without their leaving. By ``interchange`` proposed
    ones stay, too, in whose place others leave, and static pods never leave.
    """
    state = engine.state(node)
    if state is None:
        return None
    first, room = frozenset(proposed), _NodeWithoutVictims(engine.ledger, state, request)
    bookings = list(engine.ledger.on_node(node))
    if interchange is not None:
        if any(map(interchange.never_leaves, first)):
            return None
        bookings = [booking for booking in bookings if not interchange.never_leaves(booking.uid)]
    room.leave_all(bookings, first)
    if room.fits():
        return first
    completed = _completed(room, bookings, first, priority)
    if completed is None or interchange is None:
        return frozenset(completed) if completed is not None else None
    _spare_proposed(room, bookings, first, completed, interchange)
    return frozenset(completed)


def _completed(
    room: "_NodeWithoutVictims", bookings: Iterable[Booking], first: frozenset[str], priority: int
) -> set[str] | None:
    """Return ``first``, who have left ``room``, and who has to leave beside them; None where all are not enough."""
    if room.fits():
        return set(first)
    # A reservation is of a pod that is not on the node yet: kube-scheduler can evict nobody for it.
    staying = [b for b in bookings if not b.reserved and b.uid not in first]
    added: list[Booking] = []
    for booking in _in_order(staying, priority):
        room.leave(booking)
        added.append(booking)
        if room.fits():
            break
    else:
        return None
    left = {booking.uid for booking in added}
    for booking in reversed(added[:-1]):
        room.stay(booking)
        if room.fits():
            left.remove(booking.uid)
        else:
            room.leave(booking)
    return left.union(first)


def _spare_proposed(
    room: "_NodeWithoutVictims",
    bookings: Iterable[Booking],
    proposed: frozenset[str],
    leaving: set[str],
    interchange: Interchange,
) -> None:
    """Take those of the proposed victims out of ``leaving`` who need not leave beside the others."""
    if room.overbooked():  # kube-scheduler has less room on the node than its GPUs have
        return
    surplus: Counter[str] = Counter()  # what those free who leave beside the proposed ones
    for uid in leaving - proposed:
        surplus.update(interchange.amounts(uid) or {})
    candidates = [booking for booking in bookings if booking.uid in proposed]
    for booking in sorted(candidates, key=lambda each: (-each.priority, each.uid)):
        amounts = interchange.amounts(booking.uid)
        if amounts is None or any(surplus[name] < amount for name, amount in amounts.items()):
            continue
        room.stay(booking)
        if room.fits():
            leaving.remove(booking.uid)
            surplus.subtract(amounts)
        else:
            room.leave(booking)


def _in_order(staying: list[Booking], priority: int) -> Iterable[Booking]:
    """Yield who leaves next: of the lowest priority, the one on the GPU that is nearest to be empty by then."""
    held: Counter[str] = Counter({_NO_GPU: 0})  # MiB by GPU
    for booking in staying:
        for share in booking.gpus:
            held[share.uuid] += share.mib
    levels: dict[int, list[Booking]] = {}
    for booking in staying:
        if booking.priority < priority:
            levels.setdefault(booking.priority, []).append(booking)
    for level in sorted(levels):
        on_gpu: dict[str, list[tuple[int, str, Booking]]] = {}
        for booking in levels[level]:
            entry = (-sum(share.mib for share in booking.gpus), booking.uid, booking)
            for uuid in {share.uuid for share in booking.gpus} or {_NO_GPU}:
                on_gpu.setdefault(uuid, []).append(entry)
        for entries in on_gpu.values():
            heapify(entries)
        gone = set[str]()
        while on_gpu:
            uuid = min(on_gpu, key=lambda uuid: (held[uuid], on_gpu[uuid][0][:2]))
            booking = on_gpu[uuid][0][2]
            yield booking
            gone.add(booking.uid)
            for share in booking.gpus:
                held[share.uuid] -= share.mib
            for uuid in {share.uuid for share in booking.gpus} or {_NO_GPU}:
                entries = on_gpu[uuid]
                while entries and entries[0][1] in gone:
                    heappop(entries)
                if not entries:
                    del on_gpu[uuid]


class _NodeWithoutVictims:
    """What is left on the GPUs of one node while pods leave it and stay after all."""

    def __init__(self, ledger: Ledger, state: NodeState, request: Request) -> None:
        self._ledger, self._node_info, self._shape = ledger, state.info, request.shape
        self._group = ledger.group_number(request.shape.trust_group)
        serving_mode = state.info.serving_mode
        self._served = serves(serving_mode, request.shape) and same_resource(state.info, request.shape)
        self._other_plugin = serving_mode is ServingMode.OTHER_PLUGIN
        # Pods that could be on any GPU: they close the node while they stay.
        blocking = ledger.unplaced(state.info.name) if state.serving_mode is ServingMode.BLOCKED else []
        self._blocking = {booking.uid for booking in blocking}
        self._gpus = {gpu.gpu.uuid: gpu for gpu in state.gpus}
        self._trust: dict[str, Counter[str]] = {uuid: Counter() for uuid in self._gpus}
        if state.info.grouped:
            for booking in ledger.on_node(state.info.name):
                for share in booking.gpus:
                    if share.uuid in self._trust:
                        self._trust[share.uuid][booking.trust_group] += 1
        self._ready = {uuid for uuid, gpu in self._gpus.items() if self._fits(gpu)}
        self._blocked_by = set(self._blocking)

    def fits(self) -> bool:
        return self._served and not self._blocked_by and (self._other_plugin or len(self._ready) >= self._shape.gpus)

    def overbooked(self) -> bool:
        """Return whether more is booked of a GPU than it has: a place is kept there that others have to leave."""
        return any(gpu.used > gpu.total for gpu in self._gpus.values())

    def leave_all(self, bookings: Iterable[Booking], uids: Collection[str]) -> None:
        for booking in bookings:
            if booking.uid in uids:
                self.leave(booking)

    def leave(self, booking: Booking) -> None:
        self._blocked_by.discard(booking.uid)
        self._change(booking, -1)

    def stay(self, booking: Booking) -> None:
        if booking.uid in self._blocking:
            self._blocked_by.add(booking.uid)
        self._change(booking, 1)

    def _change(self, booking: Booking, sign: int) -> None:
        for share in booking.gpus:
            gpu = self._gpus.get(share.uuid)
            if gpu is None:
                continue
            mib, percent = booking.takes(share, gpu.total)
            group = gpu.group
            if self._node_info.grouped:
                trust = self._trust[share.uuid]
                trust[booking.trust_group] += sign
                names = [name for name, pods in trust.items() if pods]
                group = self._ledger.group_number(names[0]) if names else NO_GROUP
                group = MIXED_GROUPS if len(names) > 1 else group
            gpu = GpuState(
                gpu.gpu,
                gpu.total,
                gpu.used + sign * mib,
                gpu.percent + sign * percent,
                gpu.pods + sign,
                group,
            )
            self._gpus[share.uuid] = gpu
            (self._ready.add if self._fits(gpu) else self._ready.discard)(share.uuid)

    def _fits(self, gpu: GpuState) -> bool:
        return gpu_fits(gpu, self._shape, self._node_info, self._group)
