"""Holds a decision, and the Binding that makes it true."""

import msgspec

from gputile.api.core import Binding, BindingMeta, ObjectReference, Pod
from gputile.core.devices.allocation import Allocation, Chosen, binding_annotations
from gputile.core.devices.request import Request
from gputile.core.ledger.booking import Booking


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A pod's node and GPUs. A gang has thousands, so the garbage collector does not walk them.

    ``allocation`` is None, and ``gpus`` empty, on a node whose GPUs another device plugin hands out.
    ``plan``, ``plan_size`` and ``first`` are those of a pod that gets the place which its gang's plan keeps for it, and
    ``version`` is the newest version of the pod that is known to carry it.
    """

    node: str
    gpus: tuple[Chosen, ...]
    allocation: Allocation | None
    plan: str = ""
    plan_size: int = 0
    first: bool = False
    version: str = ""

    def annotations(self, pod: Pod) -> dict[str, str]:
        return binding_annotations(self.allocation, self.gpus, pod) if self.allocation else {}

    def binding(self, pod: Pod, version: str = "") -> Binding:
        """Return the Binding: it sets the node and the allocation in one write, for the pod with this UID only.

        With ``version`` it is for that resourceVersion of the pod only.
        """
        meta = BindingMeta(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            uid=pod.metadata.uid,
            annotations=self.annotations(pod),
            resource_version=version,
        )
        return Binding(metadata=meta, target=ObjectReference(api_version="v1", kind="Node", name=self.node))

    def booking(self, pod: Pod, request: Request | None, assumed_at: float) -> Booking | None:
        """Return what to assume while the Binding is under way; None where there is nothing to book.

        ``request`` is the pod's, None where it asks for no GPU; ``assumed_at`` is a time of the monotonic clock in
        seconds.
        """
        if self.allocation is None or request is None:
            return None
        return Booking(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            node=self.node,
            trust_group=request.shape.trust_group,
            allocation=self.allocation,
            asked_mib=0 if self.allocation.whole else sum(share.mib for share in self.allocation.gpus),
            priority=pod.spec.priority or 0,
            assumed_at=assumed_at,
            plan=self.plan,
            plan_size=self.plan_size,
            first=self.first,
            host=request.host,
        )

    def text(self) -> str:
        """Return the decision for people: "GPU 1 (4096 MiB)" or "GPU 0, GPU 3"."""
        if self.allocation is None:
            return "GPUs by the node's own device plugin"
        if self.allocation.whole:
            return ", ".join(f"GPU {share.index}" for share in self.allocation.gpus)
        return ", ".join(
            f"GPU {share.index} ({share.mib} MiB{f', {share.percent} % of compute' if share.percent else ''})"
            for share in self.allocation.gpus
        )
