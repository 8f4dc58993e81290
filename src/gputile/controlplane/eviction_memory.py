"""Remembers what came of evictions: whose was refused, and which gangs have left in part.

The API server refuses an eviction for more reasons than a budget tells; admission webhooks have others. For a while
other pods are chosen then. A pod that is refused again and again is asked for ever more rarely, and always again.

Of a gang that has to leave whole some evictions may be refused, or not reached. The place that it leaves may be free,
taken or given up before all of its pods have left. Those that stay are asked again, whatever becomes of the place,
unless no pod of the gang has left, or enough of its pods run again. Only bound pods are remembered, each once, and no
gang for longer than ``LASTS_S``. Another leader does not know of them.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gputile.core.devices.gang_membership import GangName
from gputile.core.placement.steps import Steps
from gputile.core.scheduling.eviction_rules import EvictionFacts, EvictionRules
from gputile.kube.errors import ApiError, KubeError

FIRST_PAUSE_S = 60.0
LONGEST_PAUSE_S = 960.0
_OF_THE_SERVER = (401, 503, 504)  # these are said of no pod


class _RefusedEviction(NamedTuple):
    """When a pod was refused the last time, and for how long it is not chosen after that; seconds."""

    at: float
    pause: float


class RefusedEvictions:
    """``seconds`` is a clock; where it jumps, pauses end. It remembers no pods but those that ``is_bound``."""

    def __init__(self, seconds: Callable[[], float], is_bound: Callable[[str], bool]) -> None:
        self._seconds, self._is_bound = seconds, is_bound
        self._refused: dict[str, _RefusedEviction] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def refused(self, uid: str, error: KubeError) -> None:
        """Note that an eviction failed; what is no answer about the pod counts nothing."""
        if not isinstance(error, ApiError) or error.status in _OF_THE_SERVER:
            return
        now = self._seconds()
        self._refused = {
            each: known
            for each, known in self._refused.items()
            if self._is_bound(each) and 0 <= now - known.at < known.pause + LONGEST_PAUSE_S
        }
        before = self._refused.get(uid)
        pause = FIRST_PAUSE_S
        if before is not None:
            pause = before.pause if now - before.at < before.pause else min(2 * before.pause, LONGEST_PAUSE_S)
        self._refused[uid] = _RefusedEviction(now, pause)

    def among(self, uids: Iterable[str]) -> list[str]:
        now = self._seconds()
        return [
            uid for uid in uids if (known := self._refused.get(uid)) is not None and 0 <= now - known.at < known.pause
        ]

    def first(self, uids: Sequence[str]) -> list[str]:
        """Return pods in the order in which to evict them: first those that may be refused, before others have left."""
        return sorted(uids, key=lambda uid: uid not in self._refused)


RETRY_S = 5.0  # between two attempts for one gang
LASTS_S = 900.0  # so long the pods of a gang that stay are asked, from when the preemptor does not see to it any more
EVICTED_S = 60.0  # an eviction that no watch has shown by then is taken to have come to nothing


class StayingPod(NamedTuple):
    """A pod that is to be evicted because others of its gang have left, and what it is told."""

    uid: str
    facts: EvictionFacts
    why: str


@dataclass(slots=True, eq=False)
class _LeavingGang:
    """A gang that is to leave whole. ``uids`` are its pods that have not left, in the order in which they are asked.

    It is whole where ``needed`` of its pods run. ``preemptors`` are for whom it leaves. ``since`` is when that was
    decided, and ``evicted`` has when evictions were accepted, in seconds. The answers about ``unsure`` were lost.
    """

    name: GangName
    needed: int
    uids: dict[str, None]
    why: str
    since: float
    preemptors: set[Hashable] = field(default_factory=set)
    evicted: dict[str, float] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    refused_at: float | None = None

    def is_evicted(self, uid: str, now: float) -> bool:
        at = self.evicted.get(uid)
        return at is not None and 0 <= now - at < EVICTED_S


class HalfLeftGangs:
    """``seconds`` is a clock; where it jumps, pods are asked sooner. ``facts`` and ``gangs`` are of the bound pods."""

    def __init__(
        self,
        seconds: Callable[[], float],
        facts: Mapping[str, EvictionFacts],
        gangs: Mapping[GangName, Collection[str]],
    ) -> None:
        self._seconds, self._facts, self._members = seconds, facts, gangs
        self._leaving: dict[GangName, _LeavingGang] = {}
        self._gang_of: dict[str, _LeavingGang] = {}  # by the UID of each pod that has not left

    def __len__(self) -> int:
        return len(self._gang_of)

    def see(self, facts: Mapping[str, EvictionFacts], gangs: Mapping[GangName, Collection[str]]) -> None:
        """Go by these bound pods from now on."""
        self._facts, self._members = facts, gangs

    def begin(self, uids: Collection[str], rules: EvictionRules, preemptor: Hashable, why: str) -> Steps[None]:
        """Note, in steps, that pods are about to be evicted: those gangs are remembered all of whose pods they are."""
        chosen, names = frozenset(uids), dict[GangName, None]()
        for uid in uids:
            facts = self._facts.get(uid)
            if facts is not None and facts.gang is not None:
                names[facts.gang] = None
            yield
        for name in names:
            yield from self._begin(name, chosen, rules, preemptor, why)

    def _begin(
        self, name: GangName, chosen: frozenset[str], rules: EvictionRules, preemptor: Hashable, why: str
    ) -> Steps[None]:
        staying: list[str] = []
        asked: list[str] = []  # who was told to leave, as far as nobody has seen that it does
        size = rules.gang_size(name)
        for uid in tuple(self._members.get(name, ())):
            if not rules.was_told_to_leave(uid):
                staying.append(uid)
                size = max(size, 0 if name.by_object else self._facts[uid].gang_size)
            elif self._stays(uid):
                asked.append(uid)
            yield
        if not chosen.issuperset(staying):
            return  # it lets these pods go
        gang = self._leaving.get(name)
        needed = min(size, len(staying)) if size > 0 else len(staying)
        if gang is None:
            gang = self._leaving[name] = _LeavingGang(name, needed, {}, why, self._seconds())
        gang.why, gang.since = why, self._seconds()
        gang.preemptors.add(preemptor)
        gang.needed = max(gang.needed, needed)
        for uid in asked:
            gang.evicted.setdefault(uid, self._seconds())
        for uid in (*staying, *asked):
            gang.uids[uid] = None
            self._gang_of[uid] = gang
            yield

    def due(
        self, preemptors: Collection[Hashable] = (), leaving: Collection[str] = ()
    ) -> Steps[list[list[StayingPod]]]:
        """Return, in steps, whom to evict now, gang by gang; one refusal ends the attempt for its gang.

        ``preemptors`` have their victims evicted themselves: nothing is to be done for these yet. The pods ``leaving``
        are to leave for others, and do not make their gang whole.
        """
        found: list[list[StayingPod]] = []
        now = self._seconds()
        for gang in list(self._leaving.values()):
            yield
            gang.preemptors.intersection_update(preemptors)
            gang.since = now if gang.preemptors else min(gang.since, now)
            if gang.preemptors:
                continue
            if gang.refused_at is not None and 0 <= now - gang.refused_at < RETRY_S:
                continue
            asked = yield from self._asked(gang, now, leaving)
            if asked is None or now - gang.since > LASTS_S:
                self._forget(gang)
            elif asked:
                found.append([StayingPod(uid, self._facts[uid], gang.why) for uid in asked])
        return found

    def _asked(self, gang: _LeavingGang, now: float, leaving: Collection[str]) -> Steps[Sequence[str] | None]:
        """Return, in steps, which pods of a gang to evict now, None where it has left, or need not."""
        for uid in list(gang.uids):
            if not self._stays(uid):
                gang.uids.pop(uid, None)
                gang.evicted.pop(uid, None)
                gang.unsure.discard(uid)
                self._gang_of.pop(uid, None)
            yield
        runs = 0
        for uid in tuple(self._members.get(gang.name, ())):
            runs += self._stays(uid) and uid not in leaving and not gang.is_evicted(uid, now)
            yield
        if runs >= gang.needed:
            # Nobody has left, or others came. Those whose answers were lost tell when they are asked again.
            return tuple(gang.unsure) or None
        return [uid for uid in gang.uids if not gang.is_evicted(uid, now)] if gang.uids else None

    def _stays(self, uid: str) -> bool:
        facts = self._facts.get(uid)
        return facts is not None and not facts.leaves_at

    def _forget(self, gang: _LeavingGang) -> None:
        del self._leaving[gang.name]
        for uid in gang.uids:
            del self._gang_of[uid]

    # -- what came of evictions

    def under_way(self) -> list[str]:
        now = self._seconds()
        return [uid for gang in self._leaving.values() for uid in gang.evicted if gang.is_evicted(uid, now)]

    def was_evicted(self, uid: str) -> None:
        """Note that the API server has accepted the eviction of a pod, or that it is gone."""
        gang = self._gang_of.get(uid)
        if gang is not None:
            gang.evicted[uid] = self._seconds()
            gang.unsure.discard(uid)

    def was_refused(self, uid: str, *, perhaps_evicted: bool) -> None:
        """Note that an eviction failed: others of the gang are asked first the next time, unless nobody knows."""
        gang = self._gang_of.get(uid)
        if gang is None:
            return
        gang.refused_at = self._seconds()
        if perhaps_evicted:
            gang.unsure.add(uid)
            return
        gang.unsure.discard(uid)
        del gang.uids[uid]
        gang.uids[uid] = None
