"""What a gang is at a moment: its pods that run, those that have a place kept for them, and those that have none."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import datetime

from gputile.api.core import Pod
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.reservation import Reservation, reservation_of
from gputile.core.placement.steps import Steps
from gputile.core.scheduling.gang_refusal import lost_place
from gputile.core.scheduling.gang_reservation import plan_problem
from gputile.core.scheduling.gang_rules import gang_size, needed_members, queue_priority, started, waits

# A place that ends within this part of its time is given anew, before others can take it.
_RENEW_PART = 4
_SECOND = 10**9
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang, at a moment.

    ``size`` is how many pods start together, 0 where nobody says. ``running`` counts pods that have started (see
    ``gang_rules.started``). ``kept`` are unbound pods with a place that they may take; ``loose`` are those without one.
    ``ending`` are those kept whose place is to be prolonged, or its end to be set right: what has begun is not moved.
    ``complete_at`` is when the newest unbound pod was created, Unix time in seconds.
    """

    name: GangName
    size: int
    running: int
    kept: tuple[Pod, ...]
    loose: tuple[Pod, ...]
    priority: int
    oldest: str
    complete_at: float
    ending: tuple[Pod, ...] = ()

    @property
    def needed(self) -> int:
        """How many of the loose pods must get a place at once, if any is to get one."""
        return needed_members(self.size, self.running + len(self.kept))

    @property
    def short(self) -> bool:
        """Whether the gang has not as many pods with a place as it needs; what is beyond that may wait for ever."""
        return self.running + len(self.kept) < self.size

    @property
    def begun(self) -> bool:
        """Whether some of the pods that start together have started, and others, lost since, have not."""
        return self.short and bool(self.running or self.kept)

    @property
    def turn(self) -> tuple[int, int, str, GangName]:
        """Whose turn it is first: those that have begun, then by priority and age; last what is beyond the need."""
        stage = 2 if not self.short else 0 if self.begun else 1
        return stage, -self.priority, self.oldest, self.name


@dataclass(frozen=True, slots=True)
class _Seen:
    """A gang as it was found, and what that depended on.

    ``from_ns`` to ``until_ns`` nothing changes by time alone, in nanoseconds. ``holds``: places were looked at.
    """

    gang: Gang | None
    revision: int
    groups_read: int
    position: int
    holds: bool
    from_ns: int
    until_ns: int


class Gangs:
    """The gangs that have unbound pods; only those are looked at again about which something may have changed."""

    def __init__(self, view: ClusterState) -> None:
        self._view = view
        self._seen: dict[GangName, _Seen] = {}

    def look(self) -> Generator[None, None, list[Gang]]:
        """Return, in steps, the gangs in the order of their turns."""
        waiting = self._view.roster.waiting()
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
        return sorted(found, key=lambda gang: gang.turn)

    def _is_stale(self, name: GangName, seen: _Seen) -> bool:
        view = self._view
        if (seen.revision, seen.groups_read) != (view.roster.revision(name), view.groups_read):
            return True
        # Places are lost by what happens to their nodes and cards, and with time.
        moved = seen.position != view.ledger.changes.position
        return seen.holds and (moved or not seen.from_ns <= view.now_ns < seen.until_ns)

    def _look_at(self, name: GangName) -> Generator[None, None, _Seen]:
        view, now_ns = self._view, self._view.now_ns
        pods = view.roster.pods(name)
        gang = yield from _gang(view, name, pods)
        whole = view.ledger.configuration.gangs.hold_seconds * _SECOND
        ends = [end for pod in pods if (end := view.hold_end(pod.metadata.uid))]
        turns = (end - part for end in ends for part in (0, whole // _RENEW_PART, whole + whole // _RENEW_PART))
        return _Seen(
            gang,
            view.roster.revision(name),
            view.groups_read,
            view.ledger.changes.position,
            bool(ends),
            now_ns,
            min((turn for turn in turns if turn > now_ns), default=_NEVER),
        )


def _gang(view: ClusterState, name: GangName, pods: Sequence[Pod]) -> Generator[None, None, Gang | None]:
    waiting = [pod for pod in pods if waits(pod)]
    if not waiting:
        return None
    yield
    running = started(pods)
    size = gang_size(name, pods, view.groups or {})
    kept = (yield from _kept(view, waiting, running)) if size else set()
    ending: list[Pod] = []
    for pod in waiting:
        yield
        if pod.metadata.uid in kept and _lasting(view, pod) is None:
            ending.append(pod)
    created = [_unix(pod.metadata.creation_timestamp) for pod in waiting]
    yield
    return Gang(
        name=name,
        size=size,
        running=len(running),
        kept=tuple(pod for pod in waiting if pod.metadata.uid in kept),
        loose=tuple(pod for pod in waiting if pod.metadata.uid not in kept),
        priority=queue_priority(waiting),
        oldest=min(pod.metadata.creation_timestamp or "" for pod in waiting),
        complete_at=max(created),
        ending=tuple(ending),
    )


def _kept(view: ClusterState, waiting: Sequence[Pod], running: Sequence[Pod]) -> Generator[None, None, set[str]]:
    """Return, in steps, the UIDs of the pods that may take the place that is kept for them.

    That is the rule of the extender (``scheduling.claim``): all places of a plan, or those of one that has begun. The
    latter are kept to their end while they are sound: with one of them lost, the others could not be given anew.
    """
    begun: set[str] = set()
    for pod in running:
        yield
        if (hold := reservation_of(pod)) is not None:
            begun.add(hold.plan)
    plans: dict[str, list[tuple[Pod, Reservation]]] = {}
    for pod in waiting:
        yield
        hold = view.hold(pod)
        if hold is None:
            continue
        if _lasting(view, pod) or (hold.plan in begun and (yield from _still_fits(view, pod, hold))):
            plans.setdefault(hold.plan, []).append((pod, hold))
    kept: set[str] = set()
    for plan, places in plans.items():
        sound: list[str] = []
        held_up: bool | None = None
        for pod, hold in places:
            yield
            if not _there(view, pod, hold):
                continue
            if hold.allocation is not None:
                if held_up is None:  # it is the same for all pods of the plan whose own place is there
                    held_up = yield from _held_up(view, pod)
                if held_up:
                    continue
            sound.append(pod.metadata.uid)
        if plan in begun or (len(sound) == len(places) >= max(hold.pods for _, hold in places)):
            kept.update(sound)
    return kept


def place_lasts(view: ClusterState, pod: Pod) -> bool:
    """Return whether the place that is kept for a pod is still its own, and does not end soon, nor far too late."""
    hold = _lasting(view, pod)
    return hold is not None and _there(view, pod, hold)


def _lasting(view: ClusterState, pod: Pod) -> Reservation | None:
    whole = view.ledger.configuration.gangs.hold_seconds * 10**9
    margin = whole // _RENEW_PART
    hold = view.hold(pod)
    # One that ends later than any should was written while a clock was wrong.
    return hold if hold is not None and margin < hold.expires_ns - view.now_ns <= whole + margin else None


def _still_fits(view: ClusterState, pod: Pod, hold: Reservation) -> Steps[bool]:
    """Return, in steps, whether kube-scheduler's own checks let the pod go where its place is."""
    predicates = view.ground().predicates
    counted = predicates.remove(pod.metadata.uid)
    try:
        return (yield from predicates.reason(pod, hold.node)) is None
    finally:
        if counted:
            predicates.place(pod, counted)


def _there(view: ClusterState, pod: Pod, hold: Reservation) -> bool:
    if hold.allocation is None:
        return hold.node in view.nodes
    booking = view.ledger.booking(pod.metadata.uid)
    if booking is None or not booking.tentative or booking.plan != hold.plan:
        return False
    return lost_place(view.ledger, booking) is None


def _held_up(view: ClusterState, pod: Pod) -> Steps[bool]:
    """Return, in steps, whether the place is one of a plan that may not start."""
    booking = view.ledger.booking(pod.metadata.uid)
    return booking is not None and (yield from plan_problem(view.ledger, booking)) is not None


def _unix(timestamp: str | None) -> float:
    if timestamp is None:
        return 0.0
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return 0.0
