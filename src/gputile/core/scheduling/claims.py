"""Decides which nodes a pod with ResourceClaims may go to, and how good they are.

kube-scheduler has found devices on each of the nodes that it asks about, and allocates them itself. gputile ranks the
nodes by the GPU that will be allocated, the first that fits, and refuses what kube-scheduler does not know: nodes that
are closed, and those whose GPUs are reserved. Nothing is booked here, so any replica may answer.
"""

from collections.abc import Sequence
from dataclasses import replace

from gputile.api.core import Pod
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB, parse_claim
from gputile.core.devices.request import MOST_PERCENT, Request, RequestError, RequestKind, Shape
from gputile.core.kube_predicates.pod_requests import host_request
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import Filtered, PlacementEngine
from gputile.core.scheduling.pod_filter import PodVerdict


def claimed_shapes(ledger: Ledger, pod: Pod) -> tuple[Shape, ...]:
    """Return what the pod's claims ask for that have no allocation yet; () for claims that the ledger does not know.

    Raises:
        RequestError: no GPU can ever serve a claim, or only without its memory being counted.
    """
    waiting = [claim for claim in ledger.claims.of_pod(pod) if claim.status.allocation is None]
    return tuple(shape for claim in waiting for shape in parse_claim(claim))


def filter_pod_with_claims(engine: PlacementEngine, pod: Pod, names: Sequence[str]) -> PodVerdict:
    """Return which of ``names`` the pod may go to, and why not to the others.

    A claim that breaks a rule is told of and not refused: whether it can be allocated is kube-scheduler's to say.
    A pod whose claims are all for devices of others may go anywhere: it takes no GPU by them, and if it asks for GPUs
    by extended resources, the node where they are reserved may be its own.
    """
    ledger, refused, invalid = engine.ledger, {}, None
    if not any(ledger.claims.of_pod(pod)):
        return PodVerdict(Filtered(list(names), {}))
    reserved = {booking.node: f"its GPUs are reserved for pod {booking.key}" for booking in ledger.reserved()}
    for name in names:
        node_info = ledger.info_of(name)
        why = node_info.problem if node_info is not None and node_info.problem else reserved.get(name)
        if why is not None:
            refused[name] = f"{name}: {why}"
    nodes = Filtered([name for name in names if name not in refused], refused)
    try:
        claimed_shapes(engine.ledger, pod)
    except RequestError as error:
        invalid = str(error)
    return PodVerdict(nodes, invalid=invalid)


def rank_pod_with_claims(engine: PlacementEngine, pod: Pod, names: Sequence[str]) -> list[int]:
    """Return a rank for each of ``names``, as ``PlacementEngine.rank`` does; all are 0 if nothing is to be allocated.

    A pod with several requests is ranked by the largest: the others need less of what is scarce.
    """
    try:
        shapes = claimed_shapes(engine.ledger, pod)
    except RequestError:
        return [0] * len(names)
    if not shapes:
        return [0] * len(names)
    largest = max(shapes, key=lambda shape: (shape.kind is RequestKind.WHOLE, shape.gpus, shape.mib, shape.percent))
    requests = [Request(shape, CLAIM_UNIT_MIB, (), host_request(pod)) for shape in on_either_mode(largest)]
    if engine.demand is not None:
        engine.demand.observe(pod, requests[0])
    return engine.rank(requests[0], names, *requests[1:])


def on_either_mode(shape: Shape) -> tuple[Shape, ...]:
    """Return what the shape is on nodes of each mode: without a request for compute it takes all of it in core_mem."""
    if shape.kind is not RequestKind.SHARED or shape.percent:
        return (shape,)
    return shape, replace(shape, percent=MOST_PERCENT)
