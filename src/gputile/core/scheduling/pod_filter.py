"""Decides which nodes a pod may be bound to, ranks nodes, and checks whether a node is open.

The GPUs are not chosen here, but by ``placement.fit.choose_gpus`` when the pod is bound. The nodes
of a pod depend on its gang's plan, an unconfirmed Binding, or its request. For a pod with
ResourceClaims the nodes are only ranked: kube-scheduler has found devices on each of them, and
allocates the first GPU that fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gputile.api.core import Pod
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB, parse_claim
from gputile.core.devices.request import MOST_PERCENT, Request, RequestError, RequestKind, Shape
from gputile.core.kube_predicates.node_fit import static_reason
from gputile.core.kube_predicates.pod_requests import host_request
from gputile.core.ledger.ledger import Ledger
from gputile.core.refusal import Refusal, ReservationRule, grouped
from gputile.core.scheduling.placement_engine import NAMED_NODES, Filtered, PlacementEngine
from gputile.core.scheduling.reservation_rules import reserved_node


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """The nodes for one pod.

    ``lacks_gpus`` states that the pod waits for GPUs, which may become free at any moment.
    ``invalid`` is the reason why no node can ever run the pod, or None. ``no_fit`` is the reason,
    for people, why the request fits no node now. It is None if there is nothing new to report.
    """

    nodes: Filtered
    lacks_gpus: bool = False
    invalid: str | None = None
    no_fit: str | None = None


def filter_pod(engine: PlacementEngine, pod: Pod, names: Sequence[str], now_ns: int) -> PodVerdict:
    """Return the nodes of ``names`` that the pod may use, and why it may not use the others.

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
    reserved = reserved_node(ledger, pod, now_ns)
    if isinstance(reserved, Refusal):
        # The node that the victims leave stays nominated, since the pod may soon fit there.
        left = reserved.node if reserved.rule is ReservationRule.VICTIMS_REMAIN else ""
        soon = {name: reserved.text for name in names if name == left}
        others = {name: reserved.text for name in names if name != left}
        return PodVerdict(Filtered([], soon, others), lacks_gpus=True)
    if reserved is not None:
        booking = ledger.booking(pod.metadata.uid)
        why = f"GPUs of node {reserved} are reserved for the pod"
        if booking is not None and not booking.reserved:
            why = f"an earlier Binding of the pod to node {reserved} is not confirmed yet"
        refused = {name: why for name in names if name != reserved}
        return PodVerdict(Filtered([name for name in names if name == reserved], refused))
    found = engine.filter(request, names)
    if found.feasible or not found.closest:
        return PodVerdict(found, lacks_gpus=not found.feasible)
    whys = "; ".join(grouped(found.closest, len(names), NAMED_NODES))
    return PodVerdict(found, lacks_gpus=True, no_fit=f"none of {len(names)} node(s) fits; {whys}")


def rank_pod(engine: PlacementEngine, pod: Pod, names: Sequence[str]) -> list[int]:
    """Return a rank for each of ``names``. All ranks are 0 without a valid request for GPUs."""
    try:
        request = engine.request(pod)
    except RequestError:
        request = None
    return engine.rank(request, names) if request is not None else [0] * len(names)


def rank_pod_without_gpus(
    engine: PlacementEngine, pod: Pod, names: Sequence[str]
) -> list[int] | None:
    """Return a rank for each of ``names``, or None if the pod requests or claims GPUs."""
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


def claimed_shapes(ledger: Ledger, pod: Pod) -> tuple[Shape, ...]:
    """Return the shapes of the pod's claims that have no allocation yet.

    A claim that the ledger does not know has no shapes.

    Raises:
        RequestError: no GPU can ever serve a claim, or a claim does not state its amount.
    """
    waiting = [claim for claim in ledger.claims.of_pod(pod) if claim.status.allocation is None]
    return tuple(shape for claim in waiting for shape in parse_claim(claim))


def rank_pod_with_claims(
    engine: PlacementEngine, pod: Pod, names: Sequence[str]
) -> tuple[list[int], str]:
    """Return a rank for each of ``names``, and a text about an invalid claim, or "".

    All ranks are 0 if no claim waits for an allocation. A pod with several requests is ranked by
    the largest, since the others need less of what is scarce. kube-scheduler decides whether a
    claim can be allocated. It asks for the ranks once per pod. Nothing is booked or refused here,
    so any replica may answer.
    """
    try:
        shapes = claimed_shapes(engine.ledger, pod)
    except RequestError as error:
        return [0] * len(names), str(error)
    if not shapes:
        return [0] * len(names), ""
    largest = max(
        shapes,
        key=lambda shape: (shape.kind is RequestKind.WHOLE, shape.gpus, shape.mib, shape.percent),
    )
    requests = [
        Request(shape, CLAIM_UNIT_MIB, (), host_request(pod)) for shape in ranked_shapes(largest)
    ]
    if engine.demand is not None:
        engine.demand.observe(pod, requests[0])
    return engine.rank(requests[0], names, *requests[1:]), ""


def ranked_shapes(shape: Shape) -> tuple[Shape, ...]:
    """Return the shapes by which a claim is ranked.

    In mode ``core_mem``, a claim for memory without compute gets all compute of its GPU. So the
    claim is also ranked by a second shape, which requests all compute.
    """
    if shape.kind is not RequestKind.SHARED or shape.percent:
        return (shape,)
    return shape, replace(shape, percent=MOST_PERCENT)


def accepts_now(ledger: Ledger, pod: Pod, name: str) -> bool:
    """Return whether a node is open, and its labels and taints suit the pod.

    A known node without an inventory is not checked, and counts as open.
    """
    info = ledger.info_of(name)
    if info is None or info.checked is None:
        return info is not None
    # A pod may tolerate a cordon, which ``static_reason`` checks.
    closed = info.closed and not info.checked.spec.unschedulable
    return not closed and static_reason(pod.spec, info.checked) is None
