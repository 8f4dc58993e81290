"""Binds a pod in a fixed order: decide, book, write, confirm or take back.

``PodBinding`` is the record of this, from the decision until the outcome of the Binding is known.
Decision and booking are one step (``assume_pod``), so no two Bindings get the same GPUs. The
extender's binder does the writes.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeGuard

import msgspec

from gputile.api.core import Binding, BindingMeta, ObjectReference, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.allocation import reservation_of
from gputile.core.devices.request import Request, RequestError
from gputile.core.ledger.booking import DOUBTED, Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.refusal import BindRule, FitRule, Refusal, ReservationRule, refusal_by
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from gputile.core.scheduling.reservation_rules import first_to_bind, reserved_node


@dataclass(slots=True, eq=False)
class PodBinding:
    """The Binding of a pod, from its decision until it is known whether it was executed.

    ``booking`` is the pod's booking in the ledger meanwhile, None if gputile books nothing.
    ``version`` is the only resourceVersion of the pod for which the Binding is valid, "" if none is
    known yet. ``gpus`` describes the pod's GPUs for people, "" if it requests none. ``lost_at`` is
    when the response to a write was lost, a time of the monotonic clock in seconds.
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
        """The plan that the pod's reservation belongs to, "" if it has none."""
        return self.booking.plan if self.booking is not None else ""

    @property
    def body(self) -> Binding:
        """The body of the request: node and allocation in one write, for this UID only."""
        meta = BindingMeta(
            name=self.pod.metadata.name,
            namespace=self.pod.metadata.namespace,
            uid=self.pod.metadata.uid,
            annotations=self.decision.annotations(self.pod),
            resource_version=self.version,
        )
        return Binding(
            metadata=meta, target=ObjectReference(api_version="v1", kind="Node", name=self.node)
        )

    def is_unbound(self, found: Pod | None) -> TypeGuard[Pod]:
        return (
            found is not None
            and found.metadata.uid == self.pod.metadata.uid
            and not found.spec.node_name
        )

    def is_executed(self, found: Pod | None) -> bool:
        """Return whether ``found`` is the pod, with the Binding's node and allocation."""
        if found is None or found.metadata.uid != self.pod.metadata.uid:
            return False
        allocation = self.decision.annotations(self.pod).get(ALLOCATION_ANNOTATION)
        return (
            found.spec.node_name == self.node
            and found.metadata.annotations.get(ALLOCATION_ANNOTATION) == allocation
        )

    def obstacle(self, found: Pod) -> str | None:
        """Return why this decision must not bind a newer version of the pod; None if it may."""
        if found.metadata.deletion_timestamp:
            return "is being deleted"
        reservation = reservation_of(found) if self.plan else None
        if self.plan and (reservation is None or reservation.plan != self.plan):
            return f"has lost its reservation of plan {self.plan}"
        return None

    def confirm(self) -> None:
        """Record that the Binding was executed.

        The watch confirms it, too, but the other pods of a gang's plan do not wait for that.
        """
        if self.plan:
            self.ledger.confirm(self.pod.metadata.uid)

    def forget(self, *, gone: bool = False) -> None:
        """Record that the Binding was certainly not executed.

        With ``gone``, the pod does not exist any more. The pod's GPUs are free again; a reservation
        is in force as before.
        """
        uid = self.pod.metadata.uid
        if gone:
            self.ledger.remove_pod(uid)
        else:
            self.ledger.forget(uid)


def assume_pod(
    engine: PlacementEngine, pod: Pod, node: str, unix_ns: int, monotonic: float
) -> PodBinding | Refusal[Enum] | None:
    """Decide which GPUs of ``node`` the pod gets, and book them.

    Return None if it already has GPUs of the node. ``unix_ns`` is Unix time in nanoseconds,
    ``monotonic`` time of the monotonic clock in seconds.
    """
    try:
        request = engine.request(pod)
    except RequestError as error:
        return refusal_by(BindRule.INVALID, about=str(error))
    if request is None:
        return PodBinding(
            engine.ledger, pod, Decision(node, (), None), pod.metadata.resource_version
        )
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
        engine.ledger.assume(binding.booking)
    return binding


def decide_pod(
    engine: PlacementEngine, pod: Pod, request: Request, node: str, unix_ns: int, monotonic: float
) -> PodBinding | Refusal[FitRule] | Refusal[ReservationRule]:
    """Decide the Binding of the pod to ``node``, or return why it gets no GPUs; book nothing."""
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
    return PodBinding(
        ledger, pod, decision, reservation.version or version, booking, decision.text()
    )


def _reserved_gpus(engine: PlacementEngine, reservation: Booking, now_ns: int) -> Decision:
    """Build the decision that assigns exactly the reserved GPUs, which the node must still have."""
    info, allocation = engine.ledger.info_of(reservation.node), reservation.allocation
    if info is None or allocation is None:
        raise ValueError(f"the reservation of {reservation.key} has lost its place")
    gpu_of = {gpu.uuid: gpu for gpu in info.inventory.gpus}
    gpus = tuple(gpu_of[share.uuid] for share in allocation.gpus)
    return Decision(reservation.node, gpus, allocation.decided_at(now_ns))


def pod_was_read(
    ledger: Ledger, uid: str, before: Booking | None, found: Pod | None, read_at: float
) -> None:
    """Apply a pod that was read from the API server to the ledger.

    ``found`` is None if no pod has its name. ``before`` is the pod's booking when the read began.
    If the booking has changed since, the watch may be newer than the pod that was read, which is
    then ignored. If the pod was unbound, no Binding of it may be in flight. ``read_at`` is a time
    of the monotonic clock in seconds.
    """
    if found is None or found.metadata.uid != uid:
        ledger.remove_pod(uid)
    elif before is not None and ledger.booking(uid) is before:
        if found.spec.node_name:
            ledger.apply_read_pod(found, read_at)
        else:
            ledger.forget(uid)
