"""Builds the Binding of a decided pod, and compares it with the pod when that is read again."""

from dataclasses import dataclass

import msgspec

from gputile.api.core import Binding, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.reservation import reservation_of
from gputile.core.scheduling.decision import Decision


@dataclass(frozen=True, slots=True)
class PodBinding:
    """A Binding with node and annotations, for the newest version of the pod that is known to be the right one.

    ``body`` is what the API server is sent. ``plan`` names the gang's plan that gave the pod its place, "" for none.
    ``gpus`` tells people the pod's GPUs, "" for a pod that asks for none.
    """

    body: Binding
    plan: str = ""
    gpus: str = ""

    @property
    def node(self) -> str:
        """The node that the pod is bound to."""
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

    def carried_by(self, pod: Pod) -> bool:
        """Return whether the pod is on the Binding's node, with its allocation."""
        allocation = self.body.metadata.annotations.get(ALLOCATION_ANNOTATION)
        return pod.spec.node_name == self.node and pod.metadata.annotations.get(ALLOCATION_ANNOTATION) == allocation

    def obstacle(self, pod: Pod) -> str | None:
        """Return why an unbound pod, as it is now, must not be bound so any more; None where it may be."""
        if pod.metadata.deletion_timestamp:
            return "is being deleted"
        reservation = reservation_of(pod) if self.plan else None
        if self.plan and (reservation is None or reservation.plan != self.plan):
            return f"has no place in plan {self.plan} any more"
        return None


def binding_of(pod: Pod, decision: Decision, gpus: str = "") -> PodBinding:
    """Return the Binding that makes a decision true."""
    version = decision.version or pod.metadata.resource_version
    return PodBinding(decision.binding(pod, version), decision.plan, gpus)
