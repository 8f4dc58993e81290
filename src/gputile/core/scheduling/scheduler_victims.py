"""Completes the victims that kube-scheduler proposes on a node, so that a request fits its GPUs.

kube-scheduler's dry run counts units of the whole node; it cannot see that they are on different GPUs. If its victims
are not enough, more are chosen as for any preemptor (``victim_choice``), or others replace them if these are fewer and
free as much. If the pod also has host ports, rules about other pods, or requests for other resources, it is unknown
which of the proposed victims are in its way, so all of them leave. kube-scheduler knows no gangs and evicts on one node
only, so a pod of a gang leaves without its gang here.
"""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from gputile.api.core import Pod
from gputile.api.well_known import GPU_RESOURCES
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.request import Request, RequestError
from gputile.core.kube_predicates.inter_pod import looks_at_pods
from gputile.core.kube_predicates.pod_requests import CPU, MEMORY, host_ports, pod_requests
from gputile.core.ledger.booking import Booking
from gputile.core.scheduling.eviction_rules import EvictionFacts, EvictionRules
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.victim_choice import Preemptor, VictimSearch

_COMPARED = frozenset((CPU, MEMORY, *GPU_RESOURCES))


@dataclass(frozen=True, slots=True)
class PreemptVerdict:
    """Whether evictions are useless for a pod (``hopeless``), and its GPU request.

    ``request`` is None if it requests no GPU: then kube-scheduler's victims are enough. ``compared``: the pod can lack
    only CPU, memory and GPUs on a node, so sets of victims can be compared.
    """

    hopeless: bool
    request: Request | None = None
    compared: bool = False


def judge_preemption(engine: PlacementEngine, pod: Pod) -> PreemptVerdict:
    """Judge whether evictions can help ``pod``: not if its request is invalid, or if it belongs to a planned gang."""
    try:
        request = engine.request(pod)
    except RequestError:
        return PreemptVerdict(hopeless=True)
    in_gang = engine.ledger.configuration.admission.gangs and gang_of(pod) is not None
    compared = not host_ports(pod.spec) and not looks_at_pods(pod) and _COMPARED.issuperset(pod_requests(pod.spec))
    return PreemptVerdict(in_gang, request, compared)


def victims(
    engine: PlacementEngine,
    verdict: PreemptVerdict,
    node: str,
    proposed: Iterable[str],
    priority: int,
    facts: Mapping[str, EvictionFacts],
) -> frozenset[str] | None:
    """Return the UIDs of the pods that have to leave ``node``; None if no set of lower-priority pods is enough.

    ``proposed`` are the victims that the in-tree plugins chose; ``facts`` describe the bound pods, by UID. A static pod
    is never a victim, since its kubelet restarts it. Unless ``verdict.compared``, all proposed victims leave.
    """
    first = frozenset(proposed)
    if any(uid in facts and facts[uid].static for uid in first):
        return None
    request = verdict.request
    if request is None or engine.refusal(request, node) is None:
        return first
    alone, bookings = {}, {booking.uid: booking for booking in engine.ledger.on_node(node)}
    for booking in bookings.values():
        known = facts.get(booking.uid, EvictionFacts(booking.namespace, booking.name))
        alone[booking.uid] = msgspec.structs.replace(known, gang=None, leaves_at=0.0)
    preemptor = Preemptor("", request, priority, 0.0)
    rules = EvictionRules(alone, {}, evicted=first, withdraws=False)
    choice = VictimSearch(engine, preemptor, rules).on_node(node)
    if choice is None:
        return None
    together = first.union(choice.evicted)
    if not verdict.compared:
        return together
    instead = VictimSearch(engine, preemptor, EvictionRules(alone, {}, withdraws=False)).on_node(node)
    if instead is None or len(instead.evicted) >= len(together) or not first <= bookings.keys():
        return together
    needed, freed = (_freed(bookings, uids) for uids in (first, instead.evicted))
    return frozenset(instead.evicted) if all(map(operator.ge, freed, needed)) else together


def _freed(bookings: Mapping[str, Booking], uids: Iterable[str]) -> tuple[int, int, int]:
    """Return what pods free if they leave: milli-CPU, MiB of the machine's memory, and MiB of GPUs."""
    leaving = [bookings[uid] for uid in uids]
    gpu_mib = sum(share.mib for booking in leaving for share in booking.gpus)
    return sum(each.host.cpu for each in leaving), sum(each.host.mib for each in leaving), gpu_mib
