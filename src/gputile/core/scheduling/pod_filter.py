"""Decides which nodes a pod may go to, how good they are, and whether a node takes a pod now.

Where a pod may go depends on its gang's plan, on an unconfirmed Binding, or on its request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.core.devices.request import RequestError
from gputile.core.kube_predicates.node_fit import static_reason
from gputile.core.kube_predicates.pod_requests import host_request
from gputile.core.ledger.ledger import Ledger
from gputile.core.refusal import Refusal, ReservationRule, grouped
from gputile.core.scheduling.placement_engine import NAMED_NODES, Filtered, PlacementEngine
from gputile.core.scheduling.reserved_place import reserved_place


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """The nodes for one pod. ``lacks_gpus`` says that it waits for GPUs, which may become free at any moment.

    ``invalid`` says why no node will ever do, None where one may; ``no_fit`` tells people why none does now, None where
    there is nothing new to tell.
    """

    nodes: Filtered
    lacks_gpus: bool = False
    invalid: str | None = None
    no_fit: str | None = None


def filter_pod(engine: PlacementEngine, pod: Pod, names: Sequence[str], now_ns: int) -> PodVerdict:
    """Return which of ``names`` the pod may go to, and why not to the others.

    ``now_ns`` is Unix time in nanoseconds.
    """
    ledger = engine.ledger
    try:
        request = engine.request(pod)
    except RequestError as error:
        why = str(error)
        return PodVerdict(Filtered([], unresolvable=dict.fromkeys(names, why)), invalid=why)
    if engine.demand is not None:
        engine.demand.observe(pod, request)
    if request is None:
        return PodVerdict(Filtered(list(names)))
    place = reserved_place(ledger, pod, now_ns)
    if isinstance(place, Refusal):
        return PodVerdict(_none(names, place), lacks_gpus=True)
    if place is not None:
        booking = ledger.booking(pod.metadata.uid)
        why = f"GPUs of node {place} are kept for the pod"
        if booking is not None and not booking.reserved:
            why = f"an earlier Binding of the pod to node {place} is not confirmed yet"
        refused = {name: why for name in names if name != place}
        return PodVerdict(Filtered([name for name in names if name == place], refused))
    found = engine.filter(request, names)
    return PodVerdict(found, lacks_gpus=not found.feasible, no_fit=_no_fit_text(found, len(names)))


def _none(names: Sequence[str], waits: Refusal[ReservationRule]) -> Filtered:
    """Return that the pod may go nowhere yet.

    A node that pods leave for it may take it soon: kube-scheduler then keeps the node nominated.
    """
    soon = {name: waits.text for name in names if waits.rule is ReservationRule.NOT_LEFT_YET and name == waits.node}
    return Filtered([], soon, {name: waits.text for name in names if name not in soon})


def _no_fit_text(found: Filtered, asked: int) -> str | None:
    if found.feasible or not found.closest:
        return None
    return f"none of {asked} node(s) fits; {'; '.join(grouped(found.closest, asked, NAMED_NODES))}"


def rank_pod(engine: PlacementEngine, pod: Pod, names: Sequence[str]) -> list[int]:
    """Return a rank for each of ``names``; all are 0 for a pod that asks for no GPU, or in an invalid way."""
    try:
        request = engine.request(pod)
    except RequestError:
        request = None
    return engine.rank(request, names) if request is not None else [0] * len(names)


def rank_pod_without_gpus(engine: PlacementEngine, pod: Pod, names: Sequence[str]) -> list[int] | None:
    """Return a rank for each of ``names``, for a pod that asks for no GPU; None for any other."""
    if any(engine.ledger.claims.of_pod(pod)):
        return None
    try:
        if engine.request(pod) is not None:
            return None
    except RequestError:
        return None
    if engine.demand is not None:
        engine.demand.observe(pod, None)
    return engine.rank_without_gpus(host_request(pod), names)


def takes_now(ledger: Ledger, pod: Pod, name: str) -> bool:
    """Return whether a node takes the pod now: nothing keeps it off, and the node is ready and offers its GPUs."""
    info = ledger.info_of(name)
    if info is None or info.checked is None:
        return info is not None
    # A pod may tolerate that a node is cordoned. If nothing else closes the node, it is as ready as any.
    closed = info.closed and not info.checked.spec.unschedulable
    return not closed and static_reason(pod.spec, info.checked) is None
