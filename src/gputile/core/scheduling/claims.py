"""Ranks the nodes for a pod with ResourceClaims.

kube-scheduler has found devices on each of the nodes that it asks about, and allocates them itself. gputile ranks the
nodes by the GPU that will be allocated, the first that fits. Nothing is booked or refused here, so any replica may
answer, and kube-scheduler asks once for a pod.
"""

from collections.abc import Sequence
from dataclasses import replace

from gputile.api.core import Pod
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB, parse_claim
from gputile.core.devices.request import MOST_PERCENT, Request, RequestError, RequestKind, Shape
from gputile.core.kube_predicates.pod_requests import host_request
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import PlacementEngine


def claimed_shapes(ledger: Ledger, pod: Pod) -> tuple[Shape, ...]:
    """Return what the pod's claims ask for that have no allocation yet; () for claims that the ledger does not know.

    Raises:
        RequestError: no GPU can ever serve a claim, or only without its memory being counted.
    """
    waiting = [claim for claim in ledger.claims.of_pod(pod) if claim.status.allocation is None]
    return tuple(shape for claim in waiting for shape in parse_claim(claim))


def rank_pod_with_claims(engine: PlacementEngine, pod: Pod, names: Sequence[str]) -> tuple[list[int], str]:
    """Return a rank for each of ``names``, as ``PlacementEngine.rank`` does; all are 0 if nothing is to be allocated.

    A pod with several requests is ranked by the largest: the others need less of what is scarce. The text says which
    rule a claim breaks, "" for none; whether it can be allocated all the same is kube-scheduler's to say.
    """
    try:
        shapes = claimed_shapes(engine.ledger, pod)
    except RequestError as error:
        return [0] * len(names), str(error)
    if not shapes:
        return [0] * len(names), ""
    largest = max(shapes, key=lambda shape: (shape.kind is RequestKind.WHOLE, shape.gpus, shape.mib, shape.percent))
    requests = [Request(shape, CLAIM_UNIT_MIB, (), host_request(pod)) for shape in on_either_mode(largest)]
    if engine.demand is not None:
        engine.demand.observe(pod, requests[0])
    return engine.rank(requests[0], names, *requests[1:]), ""


def on_either_mode(shape: Shape) -> tuple[Shape, ...]:
    """Return what the shape is on nodes of each mode: without a request for compute it takes all of it in core_mem."""
    if shape.kind is not RequestKind.SHARED or shape.percent:
        return (shape,)
    return shape, replace(shape, percent=MOST_PERCENT)
