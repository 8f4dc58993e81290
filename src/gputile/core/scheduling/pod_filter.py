"""Which nodes a pod may go to: by its gang's plan, by a Binding that is not confirmed yet, else by its request."""

from collections.abc import Sequence
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.core.scheduling.gang_refusal import GangRefusal, GangRule
from gputile.core.scheduling.gang_reservation import place_of, place_problem
from gputile.core.scheduling.placement_engine import Filtered, PlacementEngine


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """The nodes for one pod. ``lacks_gpus`` says that it waits for GPUs, which may become free at any moment."""

    nodes: Filtered
    lacks_gpus: bool = False


def filter_pod(engine: PlacementEngine, pod: Pod, names: Sequence[str], now_ns: int) -> PodVerdict:
    """Return which of ``names`` the pod may go to, and why not to the others. ``now_ns`` is Unix time in nanoseconds.

    Raises:
        RequestError: it asks for a GPU in a way that can never be served.
    """
    ledger, request = engine.ledger, engine.request(pod)
    if engine.demand is not None:
        engine.demand.observe(pod, request)
    if request is None:
        return PodVerdict(Filtered(list(names)))
    if (waits := place_problem(ledger, pod, now_ns)) is not None:
        return PodVerdict(_none(names, waits), lacks_gpus=True)
    if place := place_of(pod, ledger, now_ns):
        return _only(place, names, f"GPUs of node {place} are kept for the pod")
    if (booking := ledger.booking(pod.metadata.uid)) is not None:
        return _only(booking.node, names, f"an earlier Binding of the pod to node {booking.node} is not confirmed yet")
    found = engine.filter(request, names)
    return PodVerdict(found, lacks_gpus=not found.feasible)


def _none(names: Sequence[str], waits: GangRefusal) -> Filtered:
    """Return that the pod may go nowhere yet.

    A node that pods leave for it may take it soon: kube-scheduler then keeps the node nominated.
    """
    soon = {name: waits.text for name in names if waits.rule is GangRule.NOT_LEFT_YET and name == waits.node}
    return Filtered([], soon, {name: waits.text for name in names if name not in soon})


def _only(node: str, names: Sequence[str], why: str) -> PodVerdict:
    refused = {name: why for name in names if name != node}
    return PodVerdict(Filtered([name for name in names if name == node], refused))
