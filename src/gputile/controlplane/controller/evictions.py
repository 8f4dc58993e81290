"""Tracks the victims of each preemptor, and selects the evictions that are due.

Pods are evicted through the Eviction API, so no PodDisruptionBudget is violated. The API server
also refuses evictions for reasons that no budget shows, such as an admission webhook. A refused
eviction is retried after some seconds. For ``REFUSED_S`` seconds, other preemptors do not choose
the pod as a victim.

If a preemptor's victims include all remaining pods of a gang, the gang must leave as a whole. Its
pods are then evicted even if some evictions are refused and the preemptor gives up its reservation.
The retries stop if no pod of the gang has left, or if enough pods of the gang run again. A new
leader does not continue these evictions.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.core.devices.gang_membership import GangName
from gputile.core.scheduling.eviction_rules import (
    MOST_GRACE_S,
    SOON_S,
    EvictionBudget,
    EvictionRules,
)
from gputile.kube.errors import ApiError, KubeError

_SECOND = 10**9
_RETRY_NS = 5 * _SECOND  # the pause after a refused eviction
# An accepted eviction counts as failed if the watch has not shown it after this time.
_EVICTED_NS = 60 * _SECOND
REFUSED_S = 60  # how long a pod is not chosen as a victim after its eviction was refused
# how long the rest of a gang is evicted after the last preemptor has given up
_RETRIES_END_NS = 900 * _SECOND
_SERVER_STATUSES = (401, 503, 504)  # statuses that concern the server, not the pod


class Eviction(msgspec.Struct, frozen=True, gc=False):
    """An eviction to request. ``why`` is its reason.

    ``preemptor`` is None if the pod must leave because other pods of its gang have left. If the
    eviction is refused, the pods in ``about`` get an event. If ``about`` is empty, the evicted pod
    gets the event.
    """

    preemptor: GangName | None
    uid: str
    namespace: str
    name: str
    why: str
    about: tuple[Pod, ...] = ()


@dataclass(slots=True)
class PreemptorVictims:
    """The victims of one preemptor, and the results of their evictions."""

    uids: tuple[str, ...] = ()
    why: str = ""  # the reason for their eviction
    has_evicted: bool = False  # whether an eviction was accepted
    retry_ns: int = 0  # the end of the back-off after a refused eviction, Unix time
    refused: str = ""  # why an eviction was last refused


@dataclass(slots=True)
class _LeavingGang:
    """A gang that must leave as a whole, unless at least ``needed`` of its pods run.

    ``uids`` contains the pods that have not left. ``leave_for_others`` contains the pods that leave
    because of other preemptors, with the time at which this was recorded. The watch has not shown
    their evictions yet.
    """

    name: GangName
    needed: int
    why: str
    since_ns: int  # when pods of the gang were last victims of a preemptor
    uids: dict[str, None] = field(default_factory=dict)
    leave_for_others: dict[str, int] = field(default_factory=dict)
    refused_ns: int = -_RETRY_NS  # when an eviction was last refused


@dataclass(frozen=True, slots=True)
class _Eviction:
    """An accepted eviction. ``certain`` is False if the API server's response was lost."""

    at_ns: int  # Unix time
    certain: bool


class Evictions:
    """The evictions for all preemptors. A preemptor is a gang, or a single pod as a gang of one.

    ``accepted`` is the number of accepted evictions. Memory is bounded by the preemptors and the
    bound pods.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.accepted = 0
        self._state = ClusterState(configuration)  # the snapshot of the latest round
        self._victims: dict[GangName, PreemptorVictims] = {}  # by preemptor
        self._evicted: dict[str, _Eviction] = {}
        self._refused_at: dict[str, int] = {}  # Unix time, ns
        self._leaving: dict[GangName, _LeavingGang] = {}

    def begin(self, state: ClusterState, preemptors: Collection[GangName]) -> None:
        """Begin a round on the snapshot ``state``. Forget preemptors and pods that are gone."""
        self._state, bound = state, state.evictable.facts
        self._victims = {
            name: victims for name, victims in self._victims.items() if name in preemptors
        }
        self._evicted = {uid: each for uid, each in self._evicted.items() if uid in bound}
        self._refused_at = {uid: at_ns for uid, at_ns in self._refused_at.items() if uid in bound}

    def rules(
        self, preemptor: GangName | None = None, *, refused_too: bool = False
    ) -> EvictionRules:
        """Return the rules for the choice of victims.

        The victims of preemptors other than ``preemptor`` count as gone. Terminating pods count as
        gone if they end within ``SOON_S`` seconds, or within ``MOST_GRACE_S`` seconds if
        ``preemptor`` is set, because its GPUs are already reserved. With ``refused_too``, pods
        whose eviction was refused recently may be chosen.
        """
        bound = self._state.evictable
        evicted = {uid for uid in self._evicted if self._is_evicted(uid)}
        for other, victims in self._victims.items():
            if other != preemptor:
                evicted.update(victims.uids)
        return EvictionRules(
            bound.facts,
            bound.gangs,
            evicted.intersection(bound.facts),
            self._state.evictable.budget if refused_too else self._budget,
            gang_size=self._size_of_group,
            soon_s=SOON_S if preemptor is None else MOST_GRACE_S,
        )

    def _budget(self, uid: str) -> EvictionBudget | None:
        # A pod whose eviction was refused recently is treated as having a budget of its own that
        # allows no eviction.
        refused_ns = self._state.now_ns - self._refused_at.get(uid, -REFUSED_S * _SECOND)
        return (
            EvictionBudget(uid, 0)
            if 0 <= refused_ns < REFUSED_S * _SECOND
            else self._state.evictable.budget(uid)
        )

    def _size_of_group(self, name: GangName) -> int:
        """Return the ``minMember`` of the gang's PodGroup, or 0 if no PodGroup is known."""
        groups = self._state.groups or {}
        return max(0, groups.get((name.namespace, name.name), 0)) if name.by_object else 0

    def _is_evicted(self, uid: str) -> bool:
        known = self._evicted.get(uid)
        return known is not None and 0 <= self._state.now_ns - known.at_ns < _EVICTED_NS

    def _is_staying(self, uid: str) -> bool:
        facts = self._state.evictable.facts.get(uid)
        return facts is not None and not facts.leaves_at

    # -- the victims of one preemptor

    def choose(self, preemptor: GangName, uids: Sequence[str], why: str) -> None:
        """Set the victims of a preemptor. The results of earlier evictions remain recorded."""
        victims = self._victims.setdefault(preemptor, PreemptorVictims())
        if uids and tuple(uids) != victims.uids:
            facts, rules = self._state.evictable.facts, self.rules(preemptor)
            gangs = (facts[uid].gang for uid in uids if uid in facts)
            for name in dict.fromkeys(gang for gang in gangs if gang is not None):
                self._record_leaving_gang(name, frozenset(uids), rules, why)
        victims.uids, victims.why = tuple(uids), why

    def victims(self, preemptor: GangName) -> PreemptorVictims:
        return self._victims.get(preemptor, PreemptorVictims())

    def drop(self, preemptor: GangName) -> None:
        self._victims.pop(preemptor, None)

    def due(self, preemptor: GangName, about: tuple[Pod, ...]) -> list[Eviction]:
        """Return the due evictions of a preemptor's victims.

        Evictions that were refused before come first. If one of them is refused again, no other pod
        has been evicted in vain.
        """
        victims, facts = self.victims(preemptor), self._state.evictable.facts
        if 0 < victims.retry_ns - self._state.now_ns <= _RETRY_NS:
            return []
        return [
            Eviction(preemptor, uid, facts[uid].namespace, facts[uid].name, victims.why, about)
            for uid in sorted(victims.uids, key=lambda uid: uid not in self._refused_at)
            if self._is_staying(uid) and not self._is_evicted(uid)
        ]

    def leaving_at(self, node: str, gpus: Collection[str], below: int | None = None) -> list[float]:
        """Return when the grace periods of the terminating pods on these GPUs of a node end.

        The times are in Unix seconds. ``gpus`` contains the UUIDs of the GPUs. If ``below`` is set,
        only pods with a lower priority than ``below`` are considered.
        """
        facts = self._state.evictable.facts
        return [
            known.leaves_at
            for booking in self._state.ledger.on_node(node)
            if any(share.uuid in gpus for share in booking.gpus)
            and (known := facts.get(booking.uid)) is not None
            and known.leaves_at
            and (below is None or booking.priority < below)
        ]

    def pod_names(self, uids: Sequence[str], most: int = 5) -> str:
        facts = self._state.evictable.facts
        known = [facts[uid] for uid in uids if uid in facts]
        more = f" and {len(known) - most} more" if len(known) > most else ""
        return ", ".join(f"{each.namespace}/{each.name}" for each in known[:most]) + more

    # -- gangs that leave as a whole

    def _record_leaving_gang(
        self, name: GangName, chosen: Collection[str], rules: EvictionRules, why: str
    ) -> None:
        """Record that the gang must leave as a whole, if ``chosen`` has all its remaining pods.

        A pod remains if it is neither being deleted nor being evicted.
        """
        facts, now_ns = self._state.evictable.facts, self._state.now_ns
        members = self._state.evictable.gangs.get(name, ())
        staying = [uid for uid in members if not rules.is_being_removed(uid)]
        if not set(staying).issubset(chosen):
            return
        size = (
            rules.gang_size(name)
            if name.by_object
            else max((facts[uid].gang_size for uid in staying), default=0)
        )
        needed = min(size, len(staying)) if size > 0 else len(staying)
        gang = self._leaving.setdefault(name, _LeavingGang(name, needed, why, now_ns))
        gang.why, gang.since_ns, gang.needed = why, now_ns, max(gang.needed, needed)
        evicted = [uid for uid in members if uid not in staying and self._is_staying(uid)]
        gang.leave_for_others = {uid: gang.leave_for_others.get(uid, now_ns) for uid in evicted}
        gang.uids |= dict.fromkeys([*staying, *evicted])

    def rest_of_gangs(self) -> list[list[Eviction]]:
        """Return the due evictions of gangs that must leave as a whole, grouped by gang.

        A gang is excluded while one of its pods is a preemptor's victim, because ``due`` returns
        the evictions of victims.
        """
        leaving = {
            uid
            for victims in self._victims.values()
            for uid in victims.uids
            if self._is_staying(uid)
        }
        now_ns, facts = self._state.now_ns, self._state.evictable.facts
        found: list[list[Eviction]] = []
        for gang in list(self._leaving.values()):
            evicted_for_others = not leaving.isdisjoint(gang.uids)
            gang.since_ns = now_ns if evicted_for_others else min(gang.since_ns, now_ns)
            if evicted_for_others or 0 <= now_ns - gang.refused_ns < _RETRY_NS:
                continue
            rest = self._rest_of(gang, leaving)
            if rest is None or now_ns - gang.since_ns > _RETRIES_END_NS:
                del self._leaving[gang.name]
            elif rest:
                found.append(
                    [
                        Eviction(None, uid, facts[uid].namespace, facts[uid].name, gang.why)
                        for uid in rest
                    ]
                )
        return found

    def _rest_of(self, gang: _LeavingGang, leaving: Collection[str]) -> list[str] | None:
        """Return the pods of a gang to evict now, or None if the gang has left or may stay.

        The pods in ``leaving`` are victims of preemptors, and do not count as running.
        """
        gang.uids = dict.fromkeys(uid for uid in gang.uids if self._is_staying(uid))
        members = self._state.evictable.gangs.get(gang.name, ())
        running = [
            uid
            for uid in members
            if self._is_staying(uid) and uid not in leaving and not self._has_left(uid, gang)
        ]
        if len(running) >= gang.needed:
            # No pod has left, or new pods have started. Evictions with lost responses are repeated
            # to learn their result.
            return [
                uid for uid in gang.uids if uid in self._evicted and not self._evicted[uid].certain
            ] or None
        rest = [uid for uid in gang.uids if not self._has_left(uid, gang)]
        return sorted(rest, key=lambda uid: self._refused_at.get(uid, 0)) if gang.uids else None

    def _has_left(self, uid: str, gang: _LeavingGang) -> bool:
        if self._is_evicted(uid):
            return self._evicted[uid].certain
        return 0 <= self._state.now_ns - gang.leave_for_others.get(uid, -_EVICTED_NS) < _EVICTED_NS

    # -- results of evictions

    def record_accepted(self, eviction: Eviction) -> None:
        self.accepted += 1
        self._accept(eviction, certain=True)

    def record_gone(self, eviction: Eviction) -> None:
        """Record that the pod no longer exists. The watch will show the deletion."""
        self._evicted[eviction.uid] = _Eviction(self._state.now_ns, certain=True)

    def record_refusal(self, eviction: Eviction, why: str, error: KubeError) -> None:
        now_ns, uid = self._state.now_ns, eviction.uid
        if isinstance(error, ApiError) and error.status not in _SERVER_STATUSES:
            self._refused_at[uid] = now_ns
        if error.may_have_been_executed:
            self.accepted += 1
            self._accept(eviction, certain=False)
        elif uid in self._evicted and not self._evicted[uid].certain:
            del self._evicted[uid]
        for gang in self._leaving.values():
            if uid in gang.uids:
                gang.refused_ns = now_ns
        if eviction.preemptor in self._victims:
            victims = self._victims[eviction.preemptor]
            victims.refused, victims.retry_ns = why, now_ns + _RETRY_NS

    def _accept(self, eviction: Eviction, *, certain: bool) -> None:
        self._evicted[eviction.uid] = _Eviction(self._state.now_ns, certain)
        if eviction.preemptor in self._victims:
            self._victims[eviction.preemptor].has_evicted = True
