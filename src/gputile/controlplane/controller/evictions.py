"""Decides which evictions to ask for in a round, and remembers what came of them.

It does so for gangs and single pods alike. Pods are evicted by the Eviction API, so no PodDisruptionBudget is violated.
An eviction that was refused is asked for again after some seconds, and the pod is not chosen by others for a while
(``eviction_memory``). A gang that has to leave whole leaves whole, also where the reservation that it makes room for is
given up meanwhile.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.eviction_memory import EVICTED_S, HalfLeftGangs, RefusedEvictions
from gputile.core.devices.gang_membership import GangName
from gputile.core.scheduling.eviction_rules import SOON_S, EvictionBudget, EvictionRules
from gputile.kube.errors import KubeError

_SECOND = 10**9
_RETRY_NS = 5 * _SECOND  # after an eviction that was refused
_EVICTED_NS = int(EVICTED_S) * _SECOND


class Eviction(msgspec.Struct, frozen=True, gc=False):
    """A pod that is to be evicted, and why.

    ``preemptor`` is the name of a gang, or the UID of a pod; None where the rest of the pod's own gang has left.
    ``told`` are the pods that an event tells of a refusal; the pod itself if there are none.
    """

    preemptor: Hashable
    uid: str
    namespace: str
    name: str
    why: str
    told: tuple[Pod, ...] = ()


@dataclass(slots=True)
class _PreemptorVictims:
    """The pods that leave for one preemptor. ``evicted`` has when evictions were accepted, Unix time in nanoseconds."""

    uids: tuple[str, ...] = ()
    evicted: dict[str, int] = field(default_factory=dict)
    retry_ns: int = 0
    refused: str = ""


class Evictions:
    """``accepted`` and ``refused`` count evictions from the start; unanswered ones are refused."""

    def __init__(self, configuration: Configuration) -> None:
        self.accepted = 0
        self.refused = 0
        self._state = ClusterState(configuration)  # that of the latest round
        self._victims: dict[Hashable, _PreemptorVictims] = {}  # by preemptor
        self._refused_lately = RefusedEvictions(self._now_s, lambda uid: uid in self._state.bound_pods.facts)
        self._half_left = HalfLeftGangs(self._now_s, {}, {})

    def _now_s(self) -> float:
        return self._state.now_ns / _SECOND

    def begin(self, state: ClusterState) -> None:
        """Begin a round on the cluster as it is now."""
        self._state = state
        self._half_left.see(state.bound_pods.facts, state.bound_pods.gangs)

    def rules(self, preemptor: Hashable = None, *, refused_too: bool = False, soon_s: float = SOON_S) -> EvictionRules:
        """Return the rules by which pods may be evicted now; victims of others than the ``preemptor`` count as gone.

        ``refused_too`` allows pods whose eviction was refused lately.
        """
        state, evicted = self._state, set(self._half_left.under_way())
        for other, victims in self._victims.items():
            evicted.update(uid for uid in victims.evicted if self._was_evicted(uid, victims))
            if other != preemptor:
                evicted.update(victims.uids)
        evicted.intersection_update(state.bound_pods.facts)
        budget = state.budgets.budget if refused_too else self._budget
        return EvictionRules(
            state.bound_pods.facts,
            state.bound_pods.gangs,
            evicted,
            budget,
            gang_size=self._size_of_group,
            soon_s=soon_s,
        )

    def _budget(self, uid: str) -> EvictionBudget | None:
        # A pod that was refused lately counts as guarded by a budget of its own that allows nothing.
        return EvictionBudget(uid, 0) if self._refused_lately.among([uid]) else self._state.budgets.budget(uid)

    def _size_of_group(self, name: GangName) -> int:
        """Return how many pods of a gang by PodGroup start together, 0 where its PodGroup says nothing."""
        groups = self._state.groups or {}
        return max(0, groups.get((name.namespace, name.name), 0)) if name.by_object else 0

    # -- the victims of one preemptor

    def choose(self, preemptor: Hashable, uids: Sequence[str], why: str) -> None:
        """Have these pods leave for a preemptor from now on; what came of their evictions so far is kept."""
        victims = self._victims.setdefault(preemptor, _PreemptorVictims())
        if uids and uids != victims.uids:
            self._half_left.begin(uids, self.rules(preemptor), preemptor, why)
        victims.uids = tuple(uids)

    def drop(self, preemptor: Hashable) -> None:
        self._victims.pop(preemptor, None)

    def due(self, preemptor: Hashable, why: str, told: tuple[Pod, ...]) -> list[Eviction]:
        """Return the evictions to ask for now, those first that may be refused: nobody is to leave in vain."""
        victims, facts = self._victims.get(preemptor, _PreemptorVictims()), self._state.bound_pods.facts
        return [
            Eviction(preemptor, uid, facts[uid].namespace, facts[uid].name, why, told)
            for uid in self._refused_lately.first(victims.uids)
            if self._is_due(uid, victims)
        ]

    def is_any_due(self, preemptor: Hashable) -> bool:
        victims = self._victims.get(preemptor, _PreemptorVictims())
        return any(self._is_due(uid, victims) for uid in victims.uids)

    def _is_due(self, uid: str, victims: _PreemptorVictims) -> bool:
        known = self._state.bound_pods.facts.get(uid)
        if known is None or known.leaves_at or 0 < victims.retry_ns - self._state.now_ns <= _RETRY_NS:
            return False
        return not self._was_evicted(uid, victims)

    def _was_evicted(self, uid: str, victims: _PreemptorVictims) -> bool:
        """Return whether an eviction was accepted; one that no watch has shown by then has come to nothing."""
        return 0 <= self._state.now_ns - victims.evicted.get(uid, -_EVICTED_NS) < _EVICTED_NS

    def has_evicted(self, preemptor: Hashable) -> bool:
        return preemptor in self._victims and bool(self._victims[preemptor].evicted)

    def refusal(self, preemptor: Hashable) -> str:
        """Return why an eviction for a preemptor was refused last, "" for none."""
        return self._victims[preemptor].refused if preemptor in self._victims else ""

    def rests(self) -> list[list[Eviction]]:
        """Return the evictions to ask for now of pods that stay of gangs which leave whole, gang by gang."""
        acting = {preemptor for preemptor, victims in self._victims.items() if victims.uids}
        facts = self._state.bound_pods.facts
        leaving = {
            uid
            for victims in self._victims.values()
            for uid in victims.uids
            if (known := facts.get(uid)) is not None and not known.leaves_at
        }
        return [
            [Eviction(None, each.uid, each.facts.namespace, each.facts.name, each.why) for each in rest]
            for rest in self._half_left.due(acting, leaving)
        ]

    def named(self, uids: Sequence[str], most: int = 5) -> str:
        facts = self._state.bound_pods.facts
        known = [facts[uid] for uid in uids if uid in facts]
        more = f" and {len(known) - most} more" if len(known) > most else ""
        return ", ".join(f"{each.namespace}/{each.name}" for each in known[:most]) + more

    # -- what came of evictions

    def was_evicted(self, eviction: Eviction) -> None:
        self.accepted += 1
        self._half_left.was_evicted(eviction.uid)
        if (victims := self._victims.get(eviction.preemptor)) is not None:
            victims.evicted[eviction.uid] = self._state.now_ns

    def was_gone(self, eviction: Eviction) -> None:
        """Note that the API server has no such pod any more: the watch tells."""
        self._half_left.was_evicted(eviction.uid)

    def was_refused(self, eviction: Eviction, why: str, error: KubeError) -> None:
        self.refused += 1
        self.accepted += error.may_have_been_executed
        self._refused_lately.refused(eviction.uid, error)
        self._half_left.was_refused(eviction.uid, perhaps_evicted=error.may_have_been_executed)
        if (victims := self._victims.get(eviction.preemptor)) is not None:
            victims.refused, victims.retry_ns = why, self._state.now_ns + _RETRY_NS
            if error.may_have_been_executed:
                victims.evicted[eviction.uid] = self._state.now_ns
