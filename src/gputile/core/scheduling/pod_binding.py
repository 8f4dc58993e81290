"""Holds the Binding of a decided pod, and tells the ledger what became of it."""

from dataclasses import dataclass, field
from typing import TypeGuard

import msgspec

from gputile.api.core import Binding, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.reservation import reservation_of
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.events import Confirmed, Forgotten, PodDeleted, PodRead
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.decision import Decision
from gputile.core.scheduling.placement_engine import PlacementEngine


@dataclass(frozen=True, slots=True)
class PodReading:
    """A reading of a pod from the API server, which ends with ``apply``.

    ``before`` is what the ledger had of the pod when the reading began: what the watch says of the pod from then on
    may be newer than what is read, and stands.
    """

    ledger: Ledger
    namespace: str
    name: str
    uid: str
    before: Booking | None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def apply(self, found: Pod | None, read_at: float) -> None:
        """Apply what was read to the ledger. ``read_at`` is a time of the monotonic clock in seconds."""
        if found is None or found.metadata.uid != self.uid:
            self.ledger.apply(PodDeleted(self.uid))
        elif self.before is not None and self.ledger.booking(self.uid) is self.before:
            self.ledger.apply(PodRead(found, read_at))


def overdue(engine: PlacementEngine, now: float, age: float) -> list[PodReading]:
    """Return readings, begun now, of the pods that were assumed ``age`` seconds ago and that no watch has confirmed.

    ``now`` is a time of the monotonic clock in seconds.
    """
    ledger = engine.ledger
    return [PodReading(ledger, each.namespace, each.name, each.uid, each) for each in ledger.overdue(now, age)]


@dataclass(frozen=True, slots=True)
class PodBinding:
    """A Binding of ``pod`` with node and annotations, for its newest version that is known to be the right one.

    ``body`` is what the API server is sent. ``plan`` names the gang's plan that gave the pod its place, "" for none.
    ``gpus`` tells people the pod's GPUs, "" for a pod that asks for none. What is booked for it stays in ``ledger``
    until that is told what became of the Binding: ``confirm``, ``take_back``, or a reading of the pod.
    """

    ledger: Ledger = field(repr=False)
    pod: Pod
    body: Binding
    plan: str = ""
    gpus: str = ""

    @property
    def node(self) -> str:
        return self.body.target.name

    @property
    def version(self) -> str:
        """The resourceVersion of the pod that it is for, "" where none is known."""
        return self.body.metadata.resource_version

    def at(self, version: str) -> Binding:
        """Return the same Binding for a resourceVersion of the pod."""
        if version == self.version:
            return self.body
        meta = msgspec.structs.replace(self.body.metadata, resource_version=version)
        return msgspec.structs.replace(self.body, metadata=meta)

    def is_unbound(self, found: Pod | None) -> TypeGuard[Pod]:
        return found is not None and found.metadata.uid == self.pod.metadata.uid and not found.spec.node_name

    def is_executed(self, found: Pod | None) -> bool:
        """Return whether what was read is the pod, and carries the Binding's node and allocation."""
        if found is None or found.metadata.uid != self.pod.metadata.uid:
            return False
        allocation = self.body.metadata.annotations.get(ALLOCATION_ANNOTATION)
        return found.spec.node_name == self.node and found.metadata.annotations.get(ALLOCATION_ANNOTATION) == allocation

    def obstacle(self, pod: Pod) -> str | None:
        if pod.metadata.deletion_timestamp:
            return "is being deleted"
        reservation = reservation_of(pod) if self.plan else None
        if self.plan and (reservation is None or reservation.plan != self.plan):
            return f"has no place in plan {self.plan} any more"
        return None

    def confirm(self) -> None:
        """Note that the Binding was executed.

        The watch confirms it, too; the other pods of a gang's plan need not wait for that.
        """
        if self.plan:
            self.ledger.apply(Confirmed(self.pod.metadata.uid))

    def take_back(self, *, gone: bool = False) -> None:
        """Note that the Binding was certainly not executed; with ``gone`` the pod does not exist any more.

        What was booked for it is free again; where a place was kept for the pod, it is kept as before.
        """
        uid = self.pod.metadata.uid
        self.ledger.apply(PodDeleted(uid) if gone else Forgotten(uid))

    def begin_reading(self) -> PodReading:
        """Return a reading of the pod that begins now."""
        meta = self.pod.metadata
        return PodReading(self.ledger, meta.namespace, meta.name, meta.uid, self.ledger.booking(meta.uid))


def binding_of(ledger: Ledger, pod: Pod, decision: Decision, gpus: str = "") -> PodBinding:
    """Return the Binding that makes a decision true, whose GPUs are booked in ``ledger``."""
    version = decision.version or pod.metadata.resource_version
    return PodBinding(ledger, pod, decision.binding(pod, version), decision.plan, gpus)
