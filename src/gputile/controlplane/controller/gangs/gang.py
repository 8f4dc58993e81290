"""Describes a gang at a moment: its running pods, its reserved ones and the rest."""

from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass

from gputile.api.conversion import unix_seconds
from gputile.api.core import Pod
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.core.admission.gpu_requests import is_decided
from gputile.core.devices.gang_membership import GangName, gated
from gputile.core.devices.reservation import Reservation, reservation_of
from gputile.core.placement.steps import Steps
from gputile.core.refusal import ReservationRule
from gputile.core.scheduling.gang_rules import gang_size, needed_members, queue_priority, started, together_text, waits
from gputile.core.scheduling.reserved_place import lost_reservation, plan_problem

# A reservation that ends within this part of its time is renewed, before others can take its GPUs.
_RENEW_PART = 4
_A_STEP = 64  # pods
_SECOND = 10**9
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang, at a moment.

    ``size`` is how many pods start together, 0 where no label, PodGroup or plan that has begun tells. ``running``
    counts pods that have started (see ``gang_rules.started``), and ``begun`` tells that some of these ask for
    GPUs: the others start alone. ``reserved`` are unbound pods with a reservation that they may
    use; ``unreserved`` are those without one. ``ending`` are reserved pods of a started plan, which is not
    moved: the end of their reservation is to be put off, or set right.
    ``complete_at`` is when the newest unbound pod was created, Unix time in seconds. ``repeated`` tells that a plan of
    the gang has kept GPUs until it ended, or is about to, and has not begun.
    """

    name: GangName
    size: int
    running: int
    begun: bool
    reserved: tuple[Pod, ...]
    unreserved: tuple[Pod, ...]
    priority: int
    oldest: str
    complete_at: float
    ending: tuple[Pod, ...] = ()
    repeated: bool = False

    @property
    def needed(self) -> int:
        """How many of the unreserved pods must get a reservation at once, if any is to get one."""
        return needed_members(self.size, self.running + len(self.reserved))

    @property
    def below_min_member(self) -> bool:
        """Whether fewer pods than start together run or have a reservation; pods beyond that may wait for ever."""
        return self.running + len(self.reserved) < self.size

    @property
    def together(self) -> str:
        """The unreserved pods that start together, as the subject of a sentence."""
        return together_text(self.name, self.needed, self.running + len(self.reserved))

    @property
    def started(self) -> bool:
        """Whether some of the pods that start together have started, and others, lost since, have not."""
        return self.below_min_member and (self.begun or bool(self.reserved))

    @property
    def queue_order(self) -> tuple[int, int, str, GangName]:
        """The place in the queue: started gangs first, then by priority and age; last are pods beyond the need."""
        stage = 2 if not self.below_min_member else 0 if self.started else 1
        return stage, -self.priority, self.oldest, self.name


@dataclass(frozen=True, slots=True)
class _Seen:
    """A gang as it was found, and what that depended on.

    From ``from_ns`` to ``until_ns`` (nanoseconds) nothing changes by time alone. ``has_reservations`` tells whether it
    depends on reservations.
    """

    gang: Gang | None
    revision: int
    groups_read: int
    position: int
    has_reservations: bool
    from_ns: int
    until_ns: int


class Gangs:
    """The gangs with unbound pods that ask for GPUs, or are behind the gate.

    Only those are looked at again about which something may have changed.
    """

    def __init__(self, cluster_state: ClusterState) -> None:
        self._cluster_state = cluster_state
        self._seen: dict[GangName, _Seen] = {}

    def look(self) -> Generator[None, None, list[Gang]]:
        """Return, in steps, the gangs in the order of the queue."""
        waiting = self._cluster_state.members.waiting()
        for name in self._seen.keys() - set(waiting):
            del self._seen[name]
        found = []
        for name in waiting:
            seen = self._seen.get(name)
            if seen is None or self._is_stale(name, seen):
                seen = self._seen[name] = yield from self._look_at(name)
            if seen.gang is not None:
                found.append(seen.gang)
            yield
        return sorted(found, key=lambda gang: gang.queue_order)

    def _is_stale(self, name: GangName, seen: _Seen) -> bool:
        cluster_state = self._cluster_state
        if (seen.revision, seen.groups_read) != (cluster_state.members.revision(name), cluster_state.groups_read):
            return True
        # Reservations are lost by what happens to their nodes and GPUs, and with time.
        moved = seen.position != cluster_state.ledger.changes.position
        return seen.has_reservations and (moved or not seen.from_ns <= cluster_state.now_ns < seen.until_ns)

    def _look_at(self, name: GangName) -> Generator[None, None, _Seen]:
        cluster_state, now_ns = self._cluster_state, self._cluster_state.now_ns
        pods = cluster_state.members.pods(name)
        gang = yield from _gang(cluster_state, name, pods)
        whole = cluster_state.ledger.configuration.gangs.hold_seconds * _SECOND
        ends = [end for pod in pods if (end := cluster_state.reservation_end(pod.metadata.uid))]
        times = (end - part for end in ends for part in (0, whole // _RENEW_PART, whole + whole // _RENEW_PART))
        return _Seen(
            gang,
            cluster_state.members.revision(name),
            cluster_state.groups_read,
            cluster_state.ledger.changes.position,
            bool(ends),
            now_ns,
            min((time_ns for time_ns in times if time_ns > now_ns), default=_NEVER),
        )


def _gang(cluster_state: ClusterState, name: GangName, pods: Sequence[Pod]) -> Generator[None, None, Gang | None]:
    waiting = [pod for pod in pods if waits(pod)]
    if not any(gated(pod) or is_decided(pod) for pod in waiting):
        return None  # kube-scheduler, or a plugin of its own, sees to pods that ask for no GPU
    yield
    running = started(pods)
    plans = yield from _started_plans(cluster_state, waiting, running)
    size = gang_size(name, pods, cluster_state.groups or {}) or _planned_size([*running, *waiting], plans)
    alone = Counter(_plan_of(pod) for pod in running)
    reserved = (yield from _reserved(cluster_state, waiting, plans, alone)) if size else set()
    begun = any(map(is_decided, running))
    # It has become larger since it was planned, or has lost all that ran.
    if not begun and len(running) + len(reserved) < size:
        reserved = {pod.metadata.uid for pod in waiting if pod.metadata.uid in reserved and _plan_of(pod) in plans}
    ending: list[Pod] = []
    repeated = False
    for pod in waiting:
        yield
        if pod.metadata.uid in reserved and _valid_reservation(cluster_state, pod) is None:
            ending.append(pod)
        repeated = repeated or _is_repeated(cluster_state, pod, plans)
    created = [unix_seconds(pod.metadata.creation_timestamp) for pod in waiting]
    yield
    return Gang(
        name=name,
        size=size,
        running=len(running),
        begun=begun,
        reserved=tuple(pod for pod in waiting if pod.metadata.uid in reserved),
        unreserved=tuple(pod for pod in waiting if pod.metadata.uid not in reserved),
        priority=queue_priority(waiting),
        oldest=min(pod.metadata.creation_timestamp or "" for pod in waiting),
        complete_at=max(created),
        ending=tuple(ending),
        repeated=repeated,
    )


def _is_repeated(cluster_state: ClusterState, pod: Pod, started_plans: Collection[str]) -> bool:
    """Return whether a pod shows that a plan of its gang kept GPUs in vain: that one, or one before it."""
    reservation = reservation_of(pod)
    if reservation is None or reservation.plan in started_plans:
        return False
    margin = cluster_state.ledger.configuration.gangs.hold_seconds * _SECOND // _RENEW_PART
    return reservation.repeated or (reservation.first and reservation.expires_ns - cluster_state.now_ns <= margin)


def _started_plans(cluster_state: ClusterState, waiting: Sequence[Pod], running: Sequence[Pod]) -> Steps[set[str]]:
    """Return, in steps, the plans of a gang that have begun, also where the pod that began one has other labels now.

    The extender begins a plan with a pod that it binds. Others, which ask for no GPU, start without it.
    """
    begun: dict[str, bool] = {"": False}
    for number, pod in enumerate(running):
        if number % _A_STEP == 0:
            yield
        reservation = reservation_of(pod)
        if reservation is not None and (reservation.allocation is not None or not reservation.size):
            begun[reservation.plan] = True
    for number, pod in enumerate(waiting):
        if number % _A_STEP == 0:
            yield
        if (plan := _plan_of(pod)) not in begun:
            begun[plan] = any(booking.begun for booking in cluster_state.ledger.by_plan(plan))
    return {plan for plan, has_begun in begun.items() if has_begun}


def _plan_of(pod: Pod) -> str:
    reservation = reservation_of(pod)
    return reservation.plan if reservation is not None else ""


def _planned_size(pods: Sequence[Pod], plans: Collection[str]) -> int:
    """Return by how many pods a gang was started whose PodGroup is gone, or is not known; 0 where it was not started.

    What has begun goes on: a gang that has started in part could otherwise never become whole.
    """
    reservations = (reservation_of(pod) for pod in pods)
    return max((each.pods for each in reservations if each is not None and each.plan in plans), default=0)


def _reserved(
    cluster_state: ClusterState, waiting: Sequence[Pod], started_plans: Collection[str], running: Mapping[str, int]
) -> Generator[None, None, set[str]]:
    """Return, in steps, the UIDs of the pods that may use their reservation; ``running`` counts pods by their plan.

    That is the rule of the extender (``reserved_place``): all reservations of a plan, or those of a started one. The
    latter stay until they end while they are valid: with one of them lost, the others could not be made anew.
    They also stay while their node takes no pods for a moment: others would get the GPUs otherwise.
    """
    plans: dict[str, list[tuple[Pod, Reservation]]] = {}
    for pod in waiting:
        yield
        reservation = cluster_state.reservation(pod)
        if reservation is None:
            continue
        if _valid_reservation(cluster_state, pod) or (
            reservation.plan in started_plans and (yield from _still_fits(cluster_state, pod, reservation))
        ):
            plans.setdefault(reservation.plan, []).append((pod, reservation))
    reserved: set[str] = set()
    for plan, places in plans.items():
        sound: list[str] = []
        plan_waits: bool | None = None
        for pod, reservation in places:
            yield
            if not _there(cluster_state, pod, reservation):
                if _closed_meanwhile(cluster_state, pod, reservation):
                    sound.append(pod.metadata.uid)
                continue
            if reservation.allocation is not None:
                if plan_waits is None:  # it is the same for all pods of the plan whose own place is there
                    plan_waits = yield from _plan_waits(cluster_state, pod)
                if plan_waits:
                    continue
            sound.append(pod.metadata.uid)
        missing = max(reservation.pods for _, reservation in places) - running.get(plan, 0)
        if plan in started_plans or (len(sound) == len(places) >= missing):
            reserved.update(sound)
    return reserved


def reservation_lasts(cluster_state: ClusterState, pod: Pod) -> bool:
    """Return whether a pod's reservation is still its own, and ends neither soon nor far too late."""
    reservation = _valid_reservation(cluster_state, pod)
    return reservation is not None and _there(cluster_state, pod, reservation)


def _valid_reservation(cluster_state: ClusterState, pod: Pod) -> Reservation | None:
    whole = cluster_state.ledger.configuration.gangs.hold_seconds * _SECOND
    margin = whole // _RENEW_PART
    reservation = cluster_state.reservation(pod)
    # One that ends later than any should was written while a clock was wrong.
    return (
        reservation
        if reservation is not None and margin < reservation.expires_ns - cluster_state.now_ns <= whole + margin
        else None
    )


def _still_fits(cluster_state: ClusterState, pod: Pod, reservation: Reservation) -> Steps[bool]:
    """Return, in steps, whether kube-scheduler's own checks let the pod go where its reservation is."""
    predicates = cluster_state.placement.predicates
    counted = predicates.remove(pod.metadata.uid)
    try:
        return (yield from predicates.reason(pod, reservation.node)) is None
    finally:
        if counted:
            predicates.place(pod, counted)


def _there(cluster_state: ClusterState, pod: Pod, reservation: Reservation) -> bool:
    if reservation.allocation is None:
        return reservation.node in cluster_state.nodes
    booking = cluster_state.ledger.booking(pod.metadata.uid)
    if booking is None or not booking.reserved or booking.plan != reservation.plan:
        return False
    return lost_reservation(cluster_state.ledger, booking) is None


def _closed_meanwhile(cluster_state: ClusterState, pod: Pod, reservation: Reservation) -> bool:
    """Return whether a plan has begun, and a place of it lacks nothing but that its node takes pods again."""
    ledger, booking = cluster_state.ledger, cluster_state.ledger.booking(pod.metadata.uid)
    if booking is None or not booking.reserved or _valid_reservation(cluster_state, pod) is None:
        return False
    begun = any(member.begun for member in ledger.by_plan(reservation.plan))
    lost = lost_reservation(ledger, booking)
    return begun and lost is not None and lost.rule is ReservationRule.NODE_CLOSED


def _plan_waits(cluster_state: ClusterState, pod: Pod) -> Steps[bool]:
    """Return, in steps, whether the reservation belongs to a plan that may not start."""
    booking = cluster_state.ledger.booking(pod.metadata.uid)
    return booking is not None and (yield from plan_problem(cluster_state.ledger, booking)) is not None
