"""A booking: one pod's hold on cards of one node, read from the pod itself."""

from collections.abc import Callable
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.api.wellknown import ALLOCATION_ANNOTATION
from gputile.device.allocation import Allocation, AllocationError, CardShare, decode_allocation
from gputile.device.hold import hold_of
from gputile.device.request import RequestError, parse_request
from gputile.intree.podrequests import cpu_request


@dataclass(frozen=True, slots=True)
class Booking:
    """What one pod holds.

    ``allocation`` is None for a pod that is bound to the node and asks for GPUs, but carries no readable
    allocation: nobody knows yet which cards it is on, ``problem`` says why, and ``asked_mib`` how much memory it
    asks for over all cards (0 for whole cards). ``assumed_at`` is the monotonic time in seconds of a bind that the
    watch has not confirmed yet, None once it has.

    ``cpu`` is the milli-CPU that the pod asks for; it counts where the policy is packing.

    ``plan`` names the gang's plan that gave the pod its place, "" for a pod of none, and ``plan_size`` is how many
    places the plan has. A ``tentative`` booking is a hold: the cards are kept for a pod that no Binding has been sent
    for, until ``expires_ns`` (Unix time in nanoseconds).
    """

    uid: str
    namespace: str
    name: str
    node: str
    trust_group: str
    allocation: Allocation | None
    problem: str = ""
    asked_mib: int = 0
    priority: int = 0
    assumed_at: float | None = None
    plan: str = ""
    plan_size: int = 0
    tentative: bool = False
    expires_ns: int = 0
    cpu: int = 0

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

    A bound pod that asks for GPUs and carries no readable allocation gets a booking without cards. An allocation
    on a pod that asks for none means nothing: anybody could have written it.
    """
    if not pod.spec.node_name or pod.finished:
        return None
    try:
        request = parse_request(pod, unit_mib, trust_group)
        if request is None:
            return None
        asked_mib, cpu = request.shape.mib * request.shape.cards, request.cpu
    except RequestError:
        asked_mib, cpu = 0, cpu_request(pod.spec)
    text, allocation, problem = pod.metadata.annotations.get(ALLOCATION_ANNOTATION), None, ""
    if text is None:
        problem = f"it was bound without the annotation {ALLOCATION_ANNOTATION}"
    else:
        try:
            allocation = decode_allocation(text)
        except AllocationError as error:
            problem = f"its annotation {ALLOCATION_ANNOTATION} cannot be read: {error}"
    hold = hold_of(pod)
    return Booking(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        trust_group=trust_group(pod),
        allocation=allocation,
        problem=problem,
        asked_mib=asked_mib,
        priority=pod.spec.priority or 0,
        plan=hold.plan if hold else "",
        plan_size=hold.size if hold else 0,
        cpu=cpu,
    )
