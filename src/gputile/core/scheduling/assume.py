"""Decides which GPUs a pod gets on a node and books them at once.

So no two Bindings are given the same GPUs.
"""

from dataclasses import dataclass
from typing import Literal, overload

from gputile.api.core import Pod
from gputile.core.devices.request import Request, RequestError
from gputile.core.ledger.events import Assumed
from gputile.core.placement.fit_refusal import FitRefusal
from gputile.core.scheduling.decision import Decision
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.pod_binding import PodBinding, binding_of
from gputile.core.scheduling.reservation_refusal import ReservationRefusal
from gputile.core.scheduling.reserved_place import is_ordinary, take_reservation, waits_for


@dataclass(frozen=True, slots=True)
class BoundElsewhere:
    """The ``pod``, by namespace and name, has GPUs of another ``node``."""

    pod: str
    node: str


@dataclass(frozen=True, slots=True)
class BindRefusal:
    """Why a pod gets no GPUs of ``node`` now: what was decided against it, which is worded where it is read."""

    node: str
    why: FitRefusal | ReservationRefusal | RequestError | BoundElsewhere

    @property
    def text(self) -> str:
        match self.why:
            case RequestError():
                return str(self.why)
            case BoundElsewhere(pod, node):
                return f"pod {pod} has GPUs of node {node} already"
            case refusal:
                return f"node {self.node}: {refusal.text}"


@dataclass(frozen=True, slots=True)
class WaitsForPod:
    """Which pod of its gang is bound before a pod: its namespace and name."""

    key: str


@dataclass(frozen=True, slots=True)
class AlreadyBound:
    """The pod has GPUs of the node, and nothing is to be written."""


FinalVerdict = PodBinding | AlreadyBound | BindRefusal
"""What is to be done so that a pod is bound to a node now. Where a Binding is to be written, its GPUs are booked."""
BindVerdict = FinalVerdict | WaitsForPod


@dataclass(frozen=True, slots=True)
class BindTime:
    """When a Binding is decided: Unix time in nanoseconds, and time of the monotonic clock in seconds."""

    unix_ns: int
    monotonic: float


@overload
def assume_pod(
    engine: PlacementEngine, pod: Pod, node: str, now: BindTime, *, wait: Literal[False]
) -> FinalVerdict: ...


@overload
def assume_pod(engine: PlacementEngine, pod: Pod, node: str, now: BindTime, *, wait: bool) -> BindVerdict: ...


def assume_pod(engine: PlacementEngine, pod: Pod, node: str, now: BindTime, *, wait: bool) -> BindVerdict:
    """Decide about the Binding of ``pod`` to ``node``, and book its GPUs in the ledger.

    With ``wait`` the answer for a pod of a gang whose first pod is not bound yet is to wait for that one; without, it
    is why the pod cannot be bound now.
    """
    try:
        request = engine.request(pod)
    except RequestError as error:
        return BindRefusal(node, error)
    if request is None:
        return binding_of(engine.ledger, pod, Decision(node, (), None))
    uid = pod.metadata.uid
    booking = engine.ledger.booking(uid)
    if booking is not None and not booking.reserved:
        if booking.node == node:
            return AlreadyBound()
        return BindRefusal(node, BoundElsewhere(pod.key, booking.node))
    if booking is not None and wait and (first := waits_for(engine.ledger, uid)) is not None:
        return WaitsForPod(first.key)
    decision = assume(engine, pod, request, node, now)
    if not isinstance(decision, Decision):
        return BindRefusal(node, decision)
    return binding_of(engine.ledger, pod, decision, decision.text())


def assume(
    engine: PlacementEngine, pod: Pod, request: Request, node: str, now: BindTime
) -> Decision | FitRefusal | ReservationRefusal:
    """Return which GPUs of ``node`` the pod gets, which the ledger has booked for it; or why it gets none."""
    decision = decide_pod(engine, pod, request, node, now.unix_ns)
    if isinstance(decision, Decision):
        booking = decision.booking(pod, request, now.monotonic)
        if booking is not None:
            engine.ledger.apply(Assumed(booking))
    return decision


def decide_pod(
    engine: PlacementEngine, pod: Pod, request: Request, node: str, now_ns: int
) -> Decision | FitRefusal | ReservationRefusal:
    """Return which GPUs of ``node`` the pod gets now, or why it gets none. ``now_ns`` is Unix time in nanoseconds."""
    if is_ordinary(engine.ledger, pod):
        return engine.decide(request, node, now_ns)
    return take_reservation(engine, pod, request, node, now_ns)
