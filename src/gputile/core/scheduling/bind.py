"""Binds a pod in a straight line: decide, book, write, confirm or take back.

``PodBinding`` is the one record of that, from the decision until it is known what became of the Binding. Choice and
booking are one step (``assume_pod``), so no two Bindings are given the same GPUs; the extender's binder writes.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeGuard

import msgspec

from gputile.api.core import Binding, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.allocation import reservation_of
from gputile.core.devices.request import Request, RequestError
from gputile.core.ledger.booking import DOUBTED, Booking
from gputile.core.ledger.events import Assumed, Confirmed, Forgotten, PodDeleted, PodRead
from gputile.core.ledger.ledger import Ledger
from gputile.core.refusal import BindRule, FitRule, Refusal, ReservationRule, refusal_by
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from gputile.core.scheduling.reservation_rules import first_to_bind, reserved_node


@dataclass(slots=True, eq=False)
class PodBinding:
    """The Binding of a pod, from its decision until it is known whether it was executed.

    ``booking`` is what the ledger has of the pod meanwhile, None where gputile books nothing. ``version`` is the
    resourceVersion of the pod that the Binding is written for, "" where none is known yet: a Binding is valid for one.
    ``gpus`` tells people the pod's GPUs, "" for a pod that asks for none. ``lost_at`` is when the answer to a write was
    lost, a time of the monotonic clock in seconds.
    """

    ledger: Ledger = field(repr=False)
    pod: Pod
    decision: Decision
    version: str
    booking: Booking | None = None
    gpus: str = ""
    lost_at: float = 0.0

    @property
    def node(self) -> str:
        return self.decision.node

    @property
    def plan(self) -> str:
        """The gang's plan that gives the pod its place, "" for none."""
        return self.booking.plan if self.booking is not None else ""

    @property
    def body(self) -> Binding:
        """What the API server is sent."""
        return self.decision.binding(self.pod, self.version)

    def is_unbound(self, found: Pod | None) -> TypeGuard[Pod]:
        return found is not None and found.metadata.uid == self.pod.metadata.uid and not found.spec.node_name

    def is_executed(self, found: Pod | None) -> bool:
        """Return whether what was read is the pod, and carries the Binding's node and allocation."""
        if found is None or found.metadata.uid != self.pod.metadata.uid:
            return False
        allocation = self.decision.annotations(self.pod).get(ALLOCATION_ANNOTATION)
        return found.spec.node_name == self.node and found.metadata.annotations.get(ALLOCATION_ANNOTATION) == allocation

    def obstacle(self, found: Pod) -> str | None:
        """Return why a newer version of the pod must not be bound by this decision, None where it may be."""
        if found.metadata.deletion_timestamp:
            return "is being deleted"
        reservation = reservation_of(found) if self.plan else None
        if self.plan and (reservation is None or reservation.plan != self.plan):
            return f"has no place in plan {self.plan} any more"
        return None

    def confirm(self) -> None:
        """Record that the Binding was executed.

        The watch confirms it, too; the other pods of a gang's plan need not wait for that.
        """
        if self.plan:
            self.ledger.apply(Confirmed(self.pod.metadata.uid))

    def take_back(self, *, gone: bool = False) -> None:
        """Record that the Binding was certainly not executed; with ``gone`` the pod does not exist any more.

        The pod's GPUs are free again; a reservation is in force as before.
        """
        uid = self.pod.metadata.uid
        self.ledger.apply(PodDeleted(uid) if gone else Forgotten(uid))


def assume_pod(
    engine: PlacementEngine, pod: Pod, node: str, unix_ns: int, monotonic: float
) -> PodBinding | Refusal[Enum] | None:
    """Decide which GPUs of ``node`` the pod gets, and book them; None where it has GPUs of the node already.

    ``unix_ns`` is Unix time in nanoseconds, ``monotonic`` time of the monotonic clock in seconds.
    """
    try:
        request = engine.request(pod)
    except RequestError as error:
        return refusal_by(BindRule.INVALID, about=str(error))
    if request is None:
        return PodBinding(engine.ledger, pod, Decision(node, (), None), pod.metadata.resource_version)
    booking = engine.ledger.booking(pod.metadata.uid)
    if booking is not None and not booking.reserved:
        if booking.assumed_at == DOUBTED:
            return refusal_by(BindRule.DOUBTED, node=booking.node, about=pod.key)
        elsewhere = refusal_by(BindRule.BOUND_ELSEWHERE, node=booking.node, about=pod.key)
        return None if booking.node == node else elsewhere
    binding = decide_pod(engine, pod, request, node, unix_ns, monotonic)
    if isinstance(binding, Refusal):
        return msgspec.structs.replace(binding, text=f"node {node}: {binding.text}")
    if binding.booking is not None:
        engine.ledger.apply(Assumed(binding.booking))
    return binding


def decide_pod(
    engine: PlacementEngine, pod: Pod, request: Request, node: str, unix_ns: int, monotonic: float
) -> PodBinding | Refusal[FitRule] | Refusal[ReservationRule]:
    """Return the Binding of the pod to ``node``, which nothing is booked for yet, or why it gets no GPUs there now."""
    ledger = engine.ledger
    place = reserved_node(ledger, pod, unix_ns)
    if isinstance(place, Refusal):
        return place
    if place is not None and place != node:
        return refusal_by(ReservationRule.OTHER_NODE, node=place)
    reservation, version = ledger.booking(pod.metadata.uid), pod.metadata.resource_version
    if reservation is None:
        decision = engine.decide(request, node, unix_ns)
        if not isinstance(decision, Decision):
            return decision
        booking = decision.booking(pod, request, monotonic)
        return PodBinding(ledger, pod, decision, version, booking, decision.text())
    if (first := first_to_bind(ledger, reservation)) is not None:
        return refusal_by(ReservationRule.FIRST_NOT_BOUND, about=first.key)
    decision = _reserved_gpus(engine, reservation, unix_ns)
    booking = msgspec.structs.replace(
        reservation,
        allocation=decision.allocation,
        assumed_at=monotonic,
        reserved=False,
        expires_ns=0,
        preemption=False,
        version="",
    )
    return PodBinding(ledger, pod, decision, reservation.version or version, booking, decision.text())


def _reserved_gpus(engine: PlacementEngine, reservation: Booking, now_ns: int) -> Decision:
    """Return the decision for exactly the GPUs that are reserved, which are there to be taken."""
    info, allocation = engine.ledger.info_of(reservation.node), reservation.allocation
    if info is None or allocation is None:
        raise ValueError(f"the reservation of {reservation.key} has lost its place")
    gpu_of = {gpu.uuid: gpu for gpu in info.inventory.gpus}
    gpus = tuple(gpu_of[share.uuid] for share in allocation.gpus)
    return Decision(reservation.node, gpus, allocation.decided_at(now_ns))


def pod_was_read(ledger: Ledger, uid: str, before: Booking | None, found: Pod | None, read_at: float) -> None:
    """Apply to the ledger what the API server says of a pod, None where it has none of that name.

    ``before`` is what the ledger had of the pod when the reading began: what the watch has said of the pod since may be
    newer than what was read, and stands. No Binding of an unbound pod may be under way. ``read_at`` is a time of the
    monotonic clock in seconds.
    """
    if found is None or found.metadata.uid != uid:
        ledger.apply(PodDeleted(uid))
    elif before is not None and ledger.booking(uid) is before:
        ledger.apply(PodRead(found, read_at) if found.spec.node_name else Forgotten(uid))
