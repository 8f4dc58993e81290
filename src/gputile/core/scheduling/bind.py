"""Binds a pod in a fixed order: decide, book, write, then confirm or release the booking.

``PodBinding`` records this process from the decision until the outcome of the Binding is known.
``assume_pod`` decides and books in one step, so two Bindings never get the same GPUs. Without a
reservation, ``placement.fit.choose_gpus`` chooses the GPUs. The extender's ``binder`` sends the
writes.
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
    """The Binding of a pod, from the decision until it is known whether the Binding was executed.

    ``booking`` is the pod's booking in the ledger, or None if gputile books nothing. The Binding is
    valid only for the resourceVersion ``version`` of the pod, which is "" if none is known.
    ``gpus`` describes the pod's GPUs for people, and is "" if the pod requests none. ``lost_at`` is
    the monotonic time in seconds at which the response to a write was lost.
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
        """The plan of the pod's reservation, or "" if the pod has none."""
        return self.booking.plan if self.booking is not None else ""

    @property
    def body(self) -> Binding:
        """The body of the Binding request: node and allocation in one write, for this UID only."""
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
        """Return whether ``found`` is this pod, on this node and with this allocation."""
        if found is None or found.metadata.uid != self.pod.metadata.uid:
            return False
        allocation = self.decision.annotations(self.pod).get(ALLOCATION_ANNOTATION)
        return (
            found.spec.node_name == self.node
            and found.metadata.annotations.get(ALLOCATION_ANNOTATION) == allocation
        )

    def obstacle(self, found: Pod) -> str | None:
        """Return why ``found``, a newer version of the pod, must not be bound, or None."""
        if found.metadata.deletion_timestamp:
            return "is being deleted"
        reservation = reservation_of(found) if self.plan else None
        if self.plan and (reservation is None or reservation.plan != self.plan):
            return f"has lost its reservation of plan {self.plan}"
        return None

    def confirm(self) -> None:
        """Confirm the booking at once, since the gang's other pods wait for the confirmation."""
        if self.plan:
            self.ledger.confirm(self.pod.metadata.uid)

    def forget(self, *, gone: bool = False) -> None:
        """Free the pod's GPUs, because the Binding is known not to have been executed.

        The pod's reservation is in force again, unless the pod is ``gone`` from the API server.
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

    Return None if the pod already has GPUs of this node. ``unix_ns`` is Unix time in nanoseconds,
    and ``monotonic`` is time of the monotonic clock in seconds.
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
    """Decide the Binding of the pod to ``node``, or return why the pod gets no GPUs."""
    ledger = engine.ledger
    reserved = reserved_node(ledger, pod, unix_ns)
    if isinstance(reserved, Refusal):
        return reserved
    if reserved is not None and reserved != node:
        return refusal_by(ReservationRule.OTHER_NODE, node=reserved)
    reservation, version = ledger.booking(pod.metadata.uid), pod.metadata.resource_version
    if reservation is None:
        decision = engine.decide(request, node, unix_ns)
        if not isinstance(decision, Decision):
            return decision
        booking = decision.booking(pod, request, monotonic)
        return PodBinding(ledger, pod, decision, version, booking, decision.text())
    if (first := first_to_bind(ledger, reservation)) is not None:
        return refusal_by(ReservationRule.FIRST_NOT_BOUND, about=first.key)
    info, allocation = ledger.info_of(reservation.node), reservation.allocation
    if info is None or allocation is None:
        raise ValueError(f"the GPUs of the reservation of {reservation.key} are unknown")
    gpu_of = {gpu.uuid: gpu for gpu in info.inventory.gpus}
    gpus = tuple(gpu_of[share.uuid] for share in allocation.gpus)
    decision = Decision(reservation.node, gpus, allocation.decided_at(unix_ns))
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


def pod_was_read(
    ledger: Ledger, uid: str, before: Booking | None, found: Pod | None, read_at: float
) -> None:
    """Apply a pod that was read from the API server to the ledger.

    ``found`` is None if no pod has this name. ``before`` is the pod's booking when the read began.
    If the booking has changed since then, ``found`` may be older than the watch, and is ignored.
    The caller must not have a Binding of the pod in flight. ``read_at`` is monotonic time in
    seconds.
    """
    if found is None or found.metadata.uid != uid:
        ledger.remove_pod(uid)
    elif before is not None and ledger.booking(uid) is before:
        if found.spec.node_name:
            ledger.apply_read_pod(found, read_at)
        else:
            ledger.forget(uid)
