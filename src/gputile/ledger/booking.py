"""A booking: one pod's hold on cards of one node, read from the pod itself."""

from collections.abc import Callable
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.api.wellknown import ALLOCATION_ANNOTATION
from gputile.device.allocation import Allocation, AllocationError, CardShare, decode_allocation
from gputile.device.request import RequestError, parse_request


@dataclass(frozen=True, slots=True)
class Booking:
    """What one pod holds.

    ``allocation`` is None for a pod that is bound to the node and asks for GPUs, but carries no readable
    allocation: nobody knows yet which cards it is on, and ``problem`` says why. ``assumed_at`` is the monotonic
    time in seconds of a bind that the watch has not confirmed yet, None once it has.
    """

    uid: str
    namespace: str
    name: str
    node: str
    trust_group: str
    allocation: Allocation | None
    problem: str = ""
    priority: int = 0
    assumed_at: float | None = None

    @property
    def cards(self) -> tuple[CardShare, ...]:
        """The pod's share of each card; empty where it is not known."""
        return self.allocation.cards if self.allocation else ()

    @property
    def whole(self) -> bool:
        """Whether the pod has its cards for itself."""
        return self.allocation is not None and self.allocation.whole

    @property
    def key(self) -> str:
        """``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.name}"


def booking_of(pod: Pod, unit_mib: int, trust_group: Callable[[Pod], str]) -> Booking | None:
    """Return the booking that ``pod`` stands for, or None: not bound, finished (U4), or without a GPU.

    A bound pod that asks for GPUs and carries no readable allocation gets a booking without cards.
    """
    if not pod.spec.node_name or pod.finished:
        return None
    text, allocation, problem = pod.metadata.annotations.get(ALLOCATION_ANNOTATION), None, ""
    if text is not None:
        try:
            allocation = decode_allocation(text)
        except AllocationError as error:
            problem = f"its annotation {ALLOCATION_ANNOTATION} cannot be read: {error}"
    if allocation is None and not problem:
        if not asks_for_gpus(pod, unit_mib, trust_group):
            return None
        problem = f"it was bound without the annotation {ALLOCATION_ANNOTATION}"
    return Booking(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        trust_group=trust_group(pod),
        allocation=allocation,
        problem=problem,
        priority=pod.spec.priority or 0,
    )


def asks_for_gpus(pod: Pod, unit_mib: int, trust_group: Callable[[Pod], str]) -> bool:
    """Return whether the pod asks for GPUs, be it wrongly."""
    try:
        return parse_request(pod, unit_mib, trust_group) is not None
    except RequestError:
        return True
