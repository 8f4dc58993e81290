"""Describes waiting gangs: their pods and reservations, their order, and how long they wait."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gputile.api.config.v1alpha1 import GangConfiguration
from gputile.api.conversion import unix_seconds
from gputile.api.core import Pod
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.core.devices.allocation import Reservation, reservation_of
from gputile.core.devices.gang_membership import (
    GangName,
    gang_size,
    has_gang_gate,
    is_waiting,
    needed_members,
    queue_priority,
    started_pods,
    together_text,
)
from gputile.core.devices.request import requests_gputile_gpu
from gputile.core.refusal import ReservationRule
from gputile.core.scheduling.reservation_rules import lost_reservation, plan_problem

# Reservations are renewed in the last quarter of their time, before other pods can take the GPUs.
_RENEW_PART = 4
_SECOND = 10**9


@dataclass(frozen=True, slots=True)
class Gang:
    """The state of a gang in one round."""

    name: GangName
    size: int  # pods that start together; 0 if no label, PodGroup or started plan defines it
    unreserved: tuple[Pod, ...]  # unbound pods without a usable reservation
    priority: int
    oldest: str
    complete_at: float = 0.0  # when the newest unbound pod was created, Unix seconds
    running: int = 0  # the number of pods that have started (``gang_membership.started_pods``)
    # whether a running pod requests GPUs; other pods start without the extender
    begun: bool = False
    reserved: tuple[Pod, ...] = ()  # unbound pods with a usable reservation
    # reserved pods of a started plan whose reservations must be extended or corrected
    ending: tuple[Pod, ...] = ()
    # when GPUs were first reserved for plans that have not begun, or 0
    reserved_since_ns: int = 0
    unbegun: bool = False  # whether a plan that has not begun may begin

    @property
    def needed(self) -> int:
        """The number of unreserved pods that must get reservations together."""
        return needed_members(self.size, self.running + len(self.reserved))

    @property
    def below_min_member(self) -> bool:
        """Whether fewer than ``size`` pods run or have a reservation."""
        return self.running + len(self.reserved) < self.size

    @property
    def together(self) -> str:
        """A phrase for messages, such as "gang a: 4 pods that start together"."""
        return together_text(self.name, self.needed, self.running + len(self.reserved))

    @property
    def started(self) -> bool:
        """Whether the gang has started, and has lost pods since then."""
        return self.below_min_member and (self.begun or bool(self.reserved))

    @property
    def is_single(self) -> bool:
        """Whether this is a single pod that preempts (``gang_of_one``)."""
        return not self.name.namespace

    @property
    def pod(self) -> Pod:
        """The only pod of a gang of one."""
        (pod,) = self.unreserved
        return pod

    @property
    def queue_order(self) -> tuple[int, int, str, GangName]:
        """The sort key of the queue: by stage, then by priority and age.

        Started gangs that have lost pods come first. Gangs that have enough pods come last.
        """
        stage = 2 if not self.below_min_member else 0 if self.started else 1
        return stage, -self.priority, self.oldest, self.name


def gang_of_one(pod: Pod) -> Gang:
    """Return a ``Gang`` for a single preempting pod. Its ``name.namespace`` is empty."""
    return Gang(
        name=GangName("", pod.metadata.uid, by_object=False),
        size=1,
        unreserved=(pod,),
        priority=pod.spec.priority or 0,
        oldest=pod.metadata.creation_timestamp or "",
    )


def waiting_gangs(state: ClusterState) -> list[Gang]:
    """Return the gangs with unbound pods that request GPUs or are gated, in queue order."""
    found = (_gang(state, name, state.members.pods(name)) for name in state.members.waiting())
    return sorted((gang for gang in found if gang is not None), key=lambda gang: gang.queue_order)


def _gang(cluster_state: ClusterState, name: GangName, pods: Sequence[Pod]) -> Gang | None:
    waiting = [pod for pod in pods if is_waiting(pod)]
    if not any(has_gang_gate(pod) or requests_gputile_gpu(pod) for pod in waiting):
        return None  # pods without GPUs are left to kube-scheduler and its plugins
    running = started_pods(pods)
    plans = _started_plans(cluster_state, waiting, running)
    size = gang_size(name, pods, cluster_state.groups or {}) or _planned_size(
        [*running, *waiting], plans
    )
    alone = Counter(_plan_of(pod) for pod in running)
    reserved = _reserved(cluster_state, waiting, plans, alone) if size else set()
    begun = any(map(requests_gputile_gpu, running))
    # If the gang has grown since it was planned, or has lost all its running pods, only started
    # plans count.
    if not begun and len(running) + len(reserved) < size:
        reserved = {
            pod.metadata.uid
            for pod in waiting
            if pod.metadata.uid in reserved and _plan_of(pod) in plans
        }
    ending = (
        pod
        for pod in waiting
        if pod.metadata.uid in reserved and _valid_reservation(cluster_state, pod) is None
    )
    unbegun = [
        each
        for pod in waiting
        if (each := reservation_of(pod)) is not None and each.plan not in plans
    ]
    created = [unix_seconds(pod.metadata.creation_timestamp) for pod in waiting]
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
        reserved_since_ns=_reserved_since_ns(cluster_state, unbegun),
        unbegun=any(each.first for each in unbegun),
    )


def _reserved_since_ns(cluster_state: ClusterState, unbegun: Sequence[Reservation]) -> int:
    """Return the Unix time in ns since which GPUs have been reserved in vain for the gang, or 0.

    Reservations from before the gang's latest pause do not count (see ``GangPatience``).
    """
    settings, now_ns = cluster_state.ledger.configuration.gangs, cluster_state.now_ns
    longest_ns = (
        settings.keep_seconds + max(settings.patience_seconds, settings.keep_seconds)
    ) * _SECOND
    return min(
        (each.since_ns for each in unbegun if 0 <= now_ns - each.since_ns < longest_ns), default=0
    )


def _started_plans(
    cluster_state: ClusterState, waiting: Sequence[Pod], running: Sequence[Pod]
) -> set[str]:
    """Return the plans of a gang that have begun.

    A plan with GPUs begins when the extender binds one of its pods. Pods without GPUs do not count,
    because they start without the extender. The ledger is checked as well, because the bound pod
    may have lost its gang labels after the Binding.
    """
    begun: dict[str, bool] = {"": False}
    for pod in running:
        reservation = reservation_of(pod)
        if reservation is not None and (reservation.allocation is not None or not reservation.size):
            begun[reservation.plan] = True
    for pod in waiting:
        if (plan := _plan_of(pod)) not in begun:
            begun[plan] = bool(cluster_state.ledger.plan(plan).begun)
    return {plan for plan, has_begun in begun.items() if has_begun}


def _plan_of(pod: Pod) -> str:
    reservation = reservation_of(pod)
    return reservation.plan if reservation is not None else ""


def _planned_size(pods: Sequence[Pod], plans: Collection[str]) -> int:
    """Return the size with which a gang started, or 0 if it has not started.

    This size applies if the PodGroup is gone or not known yet. Otherwise, a partly started gang
    could never become complete.
    """
    reservations = (reservation_of(pod) for pod in pods)
    return max(
        (each.pods for each in reservations if each is not None and each.plan in plans), default=0
    )


def _reserved(
    cluster_state: ClusterState,
    waiting: Sequence[Pod],
    started_plans: Collection[str],
    running: Mapping[str, int],
) -> set[str]:
    """Return the UIDs of the pods that may use their reservations.

    ``running`` contains the number of running pods by plan. If a plan has not started, all its
    reservations must be usable, as in the extender (``reserved_node``). A started plan cannot be
    planned again, so each valid reservation of the plan is used, even if the reserved node
    temporarily accepts no pods. Otherwise other pods would get the GPUs.
    """
    plans: dict[str, list[tuple[Pod, Reservation]]] = {}
    for pod in waiting:
        reservation = cluster_state.reservation(pod)
        if reservation is None:
            continue
        if _valid_reservation(cluster_state, pod) or (
            reservation.plan in started_plans and _still_fits(cluster_state, pod, reservation)
        ):
            plans.setdefault(reservation.plan, []).append((pod, reservation))
    reserved: set[str] = set()
    for plan, places in plans.items():
        sound = [
            pod.metadata.uid
            for pod, reservation in places
            if _is_usable(cluster_state, pod, reservation)
        ]
        missing = max(reservation.pods for _, reservation in places) - running.get(plan, 0)
        if plan in started_plans or (len(sound) == len(places) >= missing):
            reserved.update(sound)
    return reserved


def has_lasting_reservation(cluster_state: ClusterState, pod: Pod) -> bool:
    """Return whether the pod has a usable reservation that ends neither soon nor too late."""
    reservation = _valid_reservation(cluster_state, pod)
    return reservation is not None and _is_available(cluster_state, pod, reservation)


def _valid_reservation(cluster_state: ClusterState, pod: Pod) -> Reservation | None:
    whole = cluster_state.ledger.configuration.gangs.hold_seconds * _SECOND
    margin = whole // _RENEW_PART
    reservation = cluster_state.reservation(pod)
    # An implausibly late end was computed from a wrong clock.
    return (
        reservation
        if reservation is not None
        and margin < reservation.expires_ns - cluster_state.now_ns <= whole + margin
        else None
    )


def _still_fits(cluster_state: ClusterState, pod: Pod, reservation: Reservation) -> bool:
    """Return whether the reserved node passes kube-scheduler's own checks for the pod."""
    predicates = cluster_state.placement.predicates
    counted = predicates.remove(pod.metadata.uid)
    try:
        return predicates.reason(pod, reservation.node) is None
    finally:
        if counted:
            predicates.place(pod, counted)


def _is_available(cluster_state: ClusterState, pod: Pod, reservation: Reservation) -> bool:
    if reservation.allocation is None:
        return reservation.node in cluster_state.nodes
    booking = cluster_state.ledger.booking(pod.metadata.uid)
    if booking is None or not booking.reserved or booking.plan != reservation.plan:
        return False
    return lost_reservation(cluster_state.ledger, booking) is None


def _is_usable(cluster_state: ClusterState, pod: Pod, reservation: Reservation) -> bool:
    """Return whether the pod may use its reservation now.

    In a started plan, the reservation stays usable while its node temporarily accepts no pods.
    """
    ledger, booking = cluster_state.ledger, cluster_state.ledger.booking(pod.metadata.uid)
    if _is_available(cluster_state, pod, reservation):
        return booking is None or plan_problem(ledger, booking) is None
    if booking is None or not booking.reserved or not ledger.plan(reservation.plan).begun:
        return False
    lost = lost_reservation(ledger, booking)
    lasts = _valid_reservation(cluster_state, pod) is not None
    return lasts and lost is not None and lost.rule is ReservationRule.NODE_CLOSED


@dataclass(slots=True)
class _UnusedReservation:
    """The times at which GPUs were reserved for a gang that did not start (Unix ns)."""

    since_ns: int | None = None  # the start of the reservation that is in force, or None
    ended_ns: int = 0  # the end of the last reservation, or 0


class GangPatience:
    """Limits how long later gangs may overtake a gang, and how long GPUs are reserved in vain.

    A gang cannot start if there are too few GPUs, or if kube-scheduler does not bind the plan's
    first pod in time. If the gang has not started after ``gangs.keepSeconds``, it loses its
    reservations and pauses. The pause lasts ``gangs.keepSeconds`` or ``gangs.patienceSeconds``,
    whichever is longer. A reservation contains the time since which GPUs have been reserved, so a
    new leader continues with that time. Times are Unix time in nanoseconds.
    """

    def __init__(self, settings: GangConfiguration) -> None:
        self._patience_ns = settings.patience_seconds * _SECOND
        self._keep_ns = settings.keep_seconds * _SECOND
        self._pause_ns = max(self._patience_ns, self._keep_ns)
        self._accounts: dict[GangName, _UnusedReservation] = {}
        self._noted: set[GangName] = set()
        self._now_ns = 0

    def begin(self, gangs: Collection[GangName], now_ns: int) -> None:
        """Begin a round. Forget gangs that are gone, and begin the pauses that are due."""
        self._now_ns = now_ns
        for name in self._accounts.keys() - gangs:
            del self._accounts[name]
        for name, account in self._accounts.items():
            if name not in self._noted:
                account.since_ns = None
            elif account.since_ns is not None and now_ns - account.since_ns >= self._keep_ns:
                account.since_ns, account.ended_ns = None, now_ns
        self._noted = set()

    def is_paused(self, gang: GangName) -> bool:
        """Return whether a gang pauses. A clock that is set back ends the pause."""
        account = self._accounts.get(gang)
        return (
            account is not None
            and 0 < account.ended_ns <= self._now_ns < account.ended_ns + self._pause_ns
        )

    def has_waited(self, gang: GangName, complete_at: float) -> bool:
        """Return whether a gang has waited so long that later gangs may no longer start before it.

        ``complete_at`` is the time at which the gang became complete, in Unix seconds.
        """
        return not self.is_paused(gang) and self._now_ns - complete_at * _SECOND > self._patience_ns

    def record_unused_reservation(self, gang: GangName, since_ns: int) -> None:
        """Record that GPUs are reserved for a gang that does not start. Call this in each round.

        ``since_ns`` is the time since which GPUs have been reserved, or 0 if it is unknown.
        """
        account = self._accounts.setdefault(gang, _UnusedReservation())
        known = [each for each in (account.since_ns, since_ns) if each and each > account.ended_ns]
        account.since_ns = min([self._now_ns, *known])
        self._noted.add(gang)
