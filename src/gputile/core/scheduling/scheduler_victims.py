"""Completes the victims that kube-scheduler proposes on a node, so that a request fits its GPUs.

kube-scheduler's dry run counts units of the whole node; it cannot see that they are on different GPUs. Its victims
leave in any case, for it may need what else they free. If that is not enough, others are chosen beside them as for any
pod that preempts (``victim_choice``). It knows no gangs, and evicts on one node, so a pod of a gang leaves alone here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from gputile.api.core import Pod
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.request import Request, RequestError
from gputile.core.scheduling.eviction_rules import EvictionFacts, EvictionRules
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.victim_choice import Preemptor, choose_victims


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
    facts: Mapping[str, EvictionFacts],
) -> frozenset[str] | None:
    """Return the UIDs of the pods that have to leave ``node``, None where no set of lower-priority pods is enough.

    ``proposed`` are the victims of the in-tree plugins, ``facts`` those of the bound pods, by UID. A static pod never
    leaves: its kubelet starts it again.
    """
    first = frozenset(proposed)
    if any(uid in facts and facts[uid].static for uid in first):
        return None
    if engine.refusal(request, node) is None:
        return first
    alone = {}
    for booking in engine.ledger.on_node(node):
        known = facts.get(booking.uid, EvictionFacts(booking.namespace, booking.name))
        alone[booking.uid] = msgspec.structs.replace(known, gang=None, leaves_at=0.0)
    rules = EvictionRules(alone, {}, evicted=first, withdraws=False)
    choice = choose_victims(engine, Preemptor("", request, priority, 0.0), (node,), rules)
    return first.union(choice.evicted) if choice is not None else None
