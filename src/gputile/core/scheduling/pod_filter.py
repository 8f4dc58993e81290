"""Decides which nodes a pod may go to: by its gang's plan, by an unconfirmed Binding or its request."""

from collections.abc import Sequence
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.core.devices.request import RequestError
from gputile.core.placement.node_reasons import grouped
from gputile.core.scheduling.placement_engine import NAMED_NODES, Filtered, PlacementEngine
from gputile.core.scheduling.reservation_refusal import ReservationRefusal, ReservationRule
from gputile.core.scheduling.reserved_place import is_ordinary, reservation_problem, reserved_node


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
    if not is_ordinary(ledger, pod):
        if (waits := reservation_problem(ledger, pod, now_ns)) is not None:
            return PodVerdict(_none(names, waits), lacks_gpus=True)
        if (place := reserved_node(ledger, pod, now_ns)) is not None:
            return _only(place, names, f"GPUs of node {place} are kept for the pod")
        if (booking := ledger.booking(pod.metadata.uid)) is not None:
            why = f"an earlier Binding of the pod to node {booking.node} is not confirmed yet"
            return _only(booking.node, names, why)
    found = engine.filter(request, names)
    return PodVerdict(found, lacks_gpus=not found.feasible, no_fit=_no_fit_text(found, len(names)))


def _none(names: Sequence[str], waits: ReservationRefusal) -> Filtered:
    """Return that the pod may go nowhere yet.

    A node that pods leave for it may take it soon: kube-scheduler then keeps the node nominated.
    """
    soon = {name: waits.text for name in names if waits.rule is ReservationRule.NOT_LEFT_YET and name == waits.node}
    return Filtered([], soon, {name: waits.text for name in names if name not in soon})


def _only(node: str, names: Sequence[str], why: str) -> PodVerdict:
    refused = {name: why for name in names if name != node}
    return PodVerdict(Filtered([name for name in names if name == node], refused))


def _no_fit_text(found: Filtered, asked: int) -> str | None:
    if found.feasible or not found.closest:
        return None
    return f"none of {asked} node(s) fits; {'; '.join(grouped(found.closest, asked, NAMED_NODES))}"
