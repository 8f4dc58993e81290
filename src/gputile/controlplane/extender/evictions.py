"""Asks the API server to evict pods for those that preempt, and remembers what came of it.

Pods are evicted by the Eviction API, so no PodDisruptionBudget is violated. Pods whose eviction was refused are not
chosen again for a while (``eviction_memory``). A gang that has to leave whole leaves whole, also where the
reservation that it makes room for is given up meanwhile.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from gputile.api.core import ObjectMeta, Pod
from gputile.api.reasons import EventReason
from gputile.controlplane.evictable_pods import BoundPods, Budgets
from gputile.controlplane.eviction_memory import EVICTED_S, HalfLeftGangs, RefusedEvictions, StayingPod
from gputile.controlplane.extender.binder import BinderClock
from gputile.controlplane.extender.pod_api import NoLongerActive, PodEvent, PreemptionApi
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.steps import at_once
from gputile.core.scheduling.eviction_rules import EvictionBudget, EvictionFacts, EvictionRules
from gputile.kube.errors import Conflict, KubeError, NotFound


@dataclass(frozen=True, slots=True)
class EvictionSources:
    """What is known of the pods that may have to leave."""

    bound_pods: BoundPods
    budgets: Budgets


class EvictionAnswer(Enum):
    """What came of an eviction that did not fail."""

    ACCEPTED = "accepted"
    GONE = "gone"  # the pod, or the one of this UID
    NOT_SENT = "not sent"  # another extender may lead by now


class Evictions:
    """Sends evictions one by one. ``accepted`` and ``refused`` count them for metrics; unanswered ones are refused."""

    def __init__(
        self,
        ledger: Ledger,
        api: PreemptionApi,
        sources: EvictionSources,
        clock: BinderClock,
        notify: Callable[[PodEvent], None],
    ) -> None:
        self.accepted = 0
        self.refused = 0
        self._ledger, self._api, self._sources = ledger, api, sources
        self._clock, self._notify = clock, notify
        self._leaving: dict[str, float] = {}  # UID -> when its eviction was accepted, monotonic
        self._refused_lately = RefusedEvictions(clock.monotonic, lambda uid: ledger.booking(uid) is not None)
        self._half_left = HalfLeftGangs(clock.monotonic, sources.bound_pods.facts, sources.bound_pods.gangs)

    def leaving(self) -> Collection[str]:
        return self._leaving.keys()

    def rules(self, unsure: Iterable[str], *, refused_too: bool, soon_s: float) -> EvictionRules:
        """Return the rules by which pods may be evicted now.

        The evictions of the UIDs ``unsure`` were not answered. ``refused_too`` allows pods that were refused lately. A
        pod that leaves within ``soon_s`` seconds counts as gone.
        """
        bound_pods, budgets = self._sources.bound_pods, self._sources.budgets
        budget = budgets.budget if refused_too else self._budget
        return EvictionRules(bound_pods.facts, bound_pods.gangs, {*self._leaving, *unsure}, budget, soon_s=soon_s)

    def _budget(self, uid: str) -> EvictionBudget | None:
        # One that was refused lately counts as guarded by a budget of its own that allows nothing.
        return EvictionBudget(uid, 0) if self._refused_lately.among([uid]) else self._sources.budgets.budget(uid)

    def begin_all(self, uids: Sequence[str], rules: EvictionRules, preemptor: str, why: str) -> list[str]:
        """Note that pods are about to be evicted; return them with those first that may be refused."""
        at_once(self._half_left.begin(uids, rules, preemptor, why))
        return self._refused_lately.first(uids)

    def due(self) -> list[list[StayingPod]]:
        """Return whom to evict now of gangs that have left in part and must leave whole, gang by gang."""
        return at_once(self._half_left.due())

    def forget(self) -> None:
        now = self._clock.monotonic()
        self._leaving = {
            uid: at
            for uid, at in self._leaving.items()
            if self._ledger.booking(uid) is not None and now - at < EVICTED_S
        }

    async def ask(self, uid: str, facts: EvictionFacts, why: str) -> EvictionAnswer | KubeError:
        """Ask for the eviction of a pod; return the error where it is refused, or nobody answers.

        A conflict means that another pod has the name now: the UID is a precondition.
        """
        try:
            await self._api.evict(facts.namespace, facts.name, uid, why)
        except NoLongerActive:
            return EvictionAnswer.NOT_SENT
        except (NotFound, Conflict):
            self._half_left.was_evicted(uid)
            return EvictionAnswer.GONE
        except KubeError as error:
            self.refused += 1
            self._refused_lately.refused(uid, error)
            self._half_left.was_refused(uid, perhaps_evicted=error.may_have_been_executed)
            return error
        self.accepted += 1
        self.told_to_leave(uid)
        self._notify(PodEvent(_named_pod(uid, facts), False, EventReason.PREEMPTED, why, latest=True))
        return EvictionAnswer.ACCEPTED

    async def ask_staying(self, staying: Sequence[StayingPod]) -> None:
        """Ask for the evictions of the pods that stay of one gang, until one is refused."""
        for uid, facts, why in staying:
            asked = await self.ask(uid, facts, why)
            if asked is EvictionAnswer.NOT_SENT:
                return
            if isinstance(asked, KubeError):
                said = f"others of its gang have left, and its eviction was refused: {asked}"
                reason = EventReason.PREEMPTION_REFUSED
                self._notify(PodEvent(_named_pod(uid, facts), True, reason, said, latest=True))
                return

    def told_to_leave(self, uid: str) -> None:
        self._leaving[uid] = self._clock.monotonic()
        self._half_left.was_evicted(uid)


def _named_pod(uid: str, facts: EvictionFacts) -> Pod:
    """Return what an event needs of a pod that may leave."""
    return Pod(metadata=ObjectMeta(namespace=facts.namespace, name=facts.name, uid=uid))
