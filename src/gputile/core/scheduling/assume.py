"""Decides about a pod and books the decision at once, so that no two Bindings are given the same GPUs."""

from gputile.api.core import Pod
from gputile.core.devices.request import Request
from gputile.core.ledger.events import Assumed
from gputile.core.placement.fit_refusal import FitRefusal
from gputile.core.scheduling.decision import Decision
from gputile.core.scheduling.gang_refusal import GangRefusal
from gputile.core.scheduling.gang_reservation import claim
from gputile.core.scheduling.placement_engine import PlacementEngine


def assume(
    engine: PlacementEngine, pod: Pod, request: Request, node: str, now_ns: int, assumed_at: float
) -> Decision | FitRefusal | GangRefusal:
    """Return which GPUs of ``node`` the pod gets, which the ledger has booked for it; or why it gets none.

    ``now_ns`` is Unix time in nanoseconds, ``assumed_at`` a time of the monotonic clock in seconds.
    """
    decision = claim(engine, pod, request, node, now_ns)
    if isinstance(decision, Decision):
        booking = decision.booking(pod, request.shape.trust_group, assumed_at)
        if booking is not None:
            engine.ledger.apply(Assumed(booking))
    return decision
