"""Reports why each node and each GPU fits or does not fit a pod (B4)."""

from collections.abc import Iterable, Sequence
from copy import copy
from itertools import islice
from typing import Annotated

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.resource_claims import ResourceClaim
from gputile.api.well_known import GANG_GATE, ISOLATION, Mode
from gputile.api.wording import described, first_of, memory_text
from gputile.core.admission.completion import DEFAULT_SCHEDULER
from gputile.core.devices.gang_membership import gang_of, has_gang_gate
from gputile.core.devices.request import (
    Request,
    RequestError,
    RequestKind,
    Shape,
    parse_request,
    requests_gputile_gpu,
)
from gputile.core.kube_predicates.pod_requests import host_request
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import GpuState, NodeState
from gputile.core.placement.fit import UNRESOLVABLE, gpu_shortages, serves
from gputile.core.refusal import FitRule, PredicateRule, Refusal
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.pod_filter import claimed_shapes
from gputile.tools.simulator.claims import MIXED_GPUS, allocate_claims, claim_requests


class HolderReport(msgspec.Struct, frozen=True, rename="camel"):
    """A pod with a booking or a reservation on a GPU."""

    namespace: Annotated[str, described("The pod's namespace.")]
    name: Annotated[str, described("The pod's name.")]
    mib: Annotated[int, described("The memory of the GPU that is booked for the pod, in MiB.")]
    percent: Annotated[
        int, described("The compute of the GPU that is booked for the pod, in percent.")
    ]
    reserved: Annotated[
        bool, described("Whether this is a reservation for a pod that is not bound yet.")
    ] = msgspec.field(name="kept", default=False)


class GpuReport(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU, its free amounts and pods, and the reason why the explained pod cannot use it."""

    index: Annotated[int, described("The index of the GPU on its node, from 0.")]
    uuid: Annotated[str, described("The GPU's UUID.")]
    total_mib: Annotated[int, described("Allocatable memory, in MiB.")]
    free_mib: Annotated[int, described("Free memory, in MiB.")]
    free_percent: Annotated[int, described("Free compute, in percent.")]
    pods: Annotated[list[HolderReport], described("The pods on this GPU.")]
    lacks: Annotated[
        str, described('The reason why the pod cannot use this GPU, or "" if the pod could use it.')
    ]


class NodeReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A node, and the reasons why the explained pod does not fit the node."""

    name: Annotated[str, described("The node's name.")]
    in_tree: Annotated[
        str, described('Why kube-scheduler\'s own checks refuse the node, or "" if it passes them.')
    ]
    gpu: Annotated[
        str, described('Why the GPUs of the node do not fit the pod, or "" if they fit.')
    ]
    unresolvable: Annotated[
        bool, described("Whether the pod would not fit the node even if no other pod were on it.")
    ] = msgspec.field(name="lasting")
    unit_mib: Annotated[int, described("The memory unit of the node, in MiB.")]
    gpus: Annotated[list[GpuReport], described("The GPUs of the node.")] = msgspec.field(
        name="cards"
    )
    fits: Annotated[bool, described("Whether the pod could be placed on the node now.")]

    @property
    def text(self) -> str:
        """The reasons why the pod does not fit the node, or "" if it fits."""
        return "; ".join(filter(None, (self.in_tree, self.gpu)))


class Subject:
    """The pod to explain, with the ledger of all other pods of its cluster.

    ``request`` is None if the pod requests no GPU, or requests GPUs by ``claims``. ``shapes`` are
    the requests of its unallocated claims. If one of these claims is invalid, ``invalid`` says why.
    Reservations that have expired by ``now_ns``, Unix time in nanoseconds, do not count.

    Raises:
        RequestError: the pod's request can never be served.
    """

    def __init__(
        self,
        pod: Pod,
        nodes: Sequence[Node],
        pods: Iterable[Pod],
        configuration: Configuration,
        now_ns: int,
        claims: Sequence[ResourceClaim] = (),
    ) -> None:
        others = [
            other
            for other in pods
            if other.metadata.uid != pod.metadata.uid or other.key != pod.key
        ]
        self._others = {other.metadata.uid: other for other in others}
        self.pod, self.nodes, self.now_ns = pod, nodes, now_ns
        self.configuration = configuration
        self.request = self.request_of(pod)
        self.predicates = Predicates(nodes)
        self.ledger = Ledger(configuration)
        self.ledger.set_time(now_ns)
        self.ledger.replace_nodes(list(nodes))
        self.ledger.replace_pods(others)
        self.ledger.replace_claims(claims)
        for other in others:
            if other.spec.node_name:
                self.predicates.place(other, other.spec.node_name)
        self.engine = PlacementEngine(self.ledger)
        self.claims = list(self.ledger.claims.of_pod(pod))
        self.shapes: tuple[Shape, ...] = ()
        self.invalid = ""
        if self.claims and self.request is not None:
            raise RequestError(MIXED_GPUS)
        try:
            self.shapes = claimed_shapes(self.ledger, pod)
        except RequestError as error:
            self.invalid = str(error)

    @property
    def others(self) -> list[Pod]:
        return list(self._others.values())

    def is_sibling(self, uid: str) -> bool:
        """Return whether the pod ``uid`` has the subject's controller, which would recreate it."""
        mine = {owner.uid for owner in self.pod.metadata.owner_references if owner.controller}
        other = self._others.get(uid)
        return other is not None and any(
            each.uid in mine for each in other.metadata.owner_references
        )

    def with_pod(self, pod: Pod) -> "Subject":
        """Return a subject for another ``pod``, with the same cluster, ledger and predicates.

        Raises:
            RequestError: the pod's request can never be served.
        """
        other = copy(self)
        other.pod, other.request = pod, self.request_of(pod)
        return other

    def request_of(self, pod: Pod) -> Request | None:
        """Return a pod's GPU request, or None if the pod requests no GPU.

        Raises:
            RequestError: the request can never be served.
        """
        return parse_request(pod, self.configuration.unit_mib, self.configuration.trust_group)

    def fitting(self, pod: Pod, names: Sequence[str], most: int) -> list[str]:
        """Return up to ``most`` of ``names`` where ``pod`` would fit if it replaced the subject."""
        try:
            request = self.request_of(pod)
        except RequestError:
            return []
        feasible = (
            self.engine.filter(request, names).feasible if request is not None else list(names)
        )
        return list(
            islice((name for name in feasible if self.predicates.reason(pod, name) is None), most)
        )

    def fits_without(self, request: Request, name: str, removed: frozenset[str]) -> bool:
        """Return whether the subject would fit a node without the pods with UIDs in ``removed``."""
        bookings = [booking for uid in removed if (booking := self.ledger.booking(uid)) is not None]
        for booking in bookings:
            self.ledger.remove_pod(booking.uid)
        placed = [uid for uid in removed if self.predicates.remove(uid)]
        try:
            return (
                self.engine.refusal(request, name) is None
                and self.predicates.reason(self.pod, name) is None
            )
        finally:
            for booking in bookings:
                self.ledger.assume(booking)
            for uid in placed:
                self.predicates.place(self._others[uid], self._others[uid].spec.node_name)

    def fits_new(self, request: Request | None, node: Node) -> bool:
        """Return whether the subject would fit ``node`` if that node were added to the cluster.

        ``request`` is None if the subject requests GPUs by claims.
        """
        name = node.metadata.name
        self.predicates.set_node(node)
        self.ledger.apply_node(node)
        try:
            refused = (
                self.engine.refusal(request, name)
                if request is not None
                else allocate_claims(self.engine, self.pod, name)
            )
            return (
                not isinstance(refused, Refusal) and self.predicates.reason(self.pod, name) is None
            )
        finally:
            self.predicates.drop_node(name)
            self.ledger.remove_node(name)

    def reports(self) -> list[NodeReport]:
        """Return the reports of all nodes, ordered from the best to the worst fit."""
        in_tree = self.predicates.reasons(self.pod)
        found = [self._report(name, reason) for name, reason in in_tree.items()]
        found.sort(
            key=lambda each: (not each[1].fits, bool(each[1].in_tree), each[0], each[1].name)
        )
        return [report for _, report in found]

    def _report(
        self, name: str, in_tree: Refusal[PredicateRule] | None
    ) -> tuple[tuple[int, int], NodeReport]:
        """Return a node's sort key (see ``_nearness``) and its report."""
        state, request = self.engine.ledger.state(name), self.request
        if self.claims:
            found = allocate_claims(self.engine, self.pod, name)
            refused = found if isinstance(found, Refusal) else None
            request = self._claimed_request(state)
        else:
            refused = self.engine.refusal(request, name) if request is not None else None
        if refused is not None and in_tree is not None and in_tree.lacks_gpus:
            in_tree = None  # the refusal because of GPUs is more detailed
        gpus = state.gpus if state is not None and request is not None else ()
        report = NodeReport(
            name=name,
            in_tree=in_tree.text if in_tree is not None else "",
            gpu=refused.text if refused is not None else "",
            unresolvable=refused is not None and refused.rule in UNRESOLVABLE,
            unit_mib=state.info.unit_mib if state is not None and request is not None else 0,
            gpus=[
                self._gpu_report(state, gpu, request, refused)
                for gpu in gpus
                if state is not None and request is not None
            ],
            fits=in_tree is None and refused is None,
        )
        return _nearness(state, refused), report

    def _claimed_request(self, state: NodeState | None) -> Request | None:
        """Return the request that the pod's largest unallocated claim makes on a node, or None."""
        if not self.shapes or state is None:
            return None
        largest = max(self.shapes, key=lambda shape: (shape.gpus, shape.mib))
        requests = claim_requests(largest, host_request(self.pod))
        return next(
            (each for each in requests if serves(state.serving_mode, each.shape)), requests[0]
        )

    def _gpu_report(
        self, state: NodeState, gpu: GpuState, request: Request, refused: Refusal[FitRule] | None
    ) -> GpuReport:
        lacks = ""
        if refused is not None and refused.rule >= FitRule.TOO_FEW:
            shortage = next(gpu_shortages(gpu, request.shape, state.info), None)
            lacks = shortage.text if shortage is not None else ""
        found = self.ledger.on_gpu(state.info.name, gpu.gpu.uuid)
        holders = [
            _holder_report(booking, gpu, state.info.replicas)
            for booking in sorted(found, key=lambda booking: booking.key)
        ]
        free_percent = max(0, 100 - gpu.percent)
        return GpuReport(
            gpu.gpu.index, gpu.gpu.uuid, gpu.total, gpu.free, free_percent, holders, lacks
        )


def request_text(request: Request | None) -> str:
    """Describe a request in words that follow the pod's name, such as "asks for one GPU"."""
    if request is None:
        return "asks for no GPU, so gputile does not choose its node"
    shape = request.shape
    gpus = "one GPU" if shape.gpus == 1 else f"each of {shape.gpus} GPUs of one node"
    if shape.kind is not RequestKind.SHARED and shape.by_claims:
        return (
            "asks for one whole GPU by a claim"
            if shape.gpus == 1
            else f"asks for {shape.gpus} GPUs by a claim"
        )
    if shape.kind is not RequestKind.SHARED:
        return f"asks for {shape.gpus} of {shape.kind.value}"
    compute = f" and {shape.percent} percent of its compute" if shape.percent else ""
    return (
        f"asks for {memory_text(shape.mib)}{compute} on "
        f"{gpus}{' by a claim' if shape.by_claims else ''}"
    )


def memory_warning(ledger: Ledger, nodes: Iterable[str]) -> str | None:
    """Return a warning if some of ``nodes`` do not limit the memory of pods, or None."""
    infos = (ledger.info_of(name) for name in dict.fromkeys(nodes))
    found = [info for info in infos if info is not None and info.grouped]
    if not found:
        return None
    sharing = "time-slicing" if found[0].sliced else f"mode {Mode.SHARE}"
    names = first_of([info.name for info in found], 3)
    advice = f"the label {ISOLATION}: memory keeps a pod off"
    return (
        f"Memory is not limited on {names} ({sharing}): a pod there can use more than it asks for; "
        f"{advice}."
    )


def gates_text(pod: Pod) -> str | None:
    """Return a text on the scheduling gates that prevent a pod's scheduling, or None."""
    gang = gang_of(pod)
    gates = [
        gate.name for gate in pod.spec.scheduling_gates if gang is None or gate.name != GANG_GATE
    ]
    if gates:
        return f"it has scheduling gates that others must remove: {', '.join(gates)}"
    if gang is not None and has_gang_gate(pod):
        return (
            f"it has the scheduling gate of gang {gang}, whose pods start together; "
            f"its Events say why the gang waits"
        )
    return None


def has_missed_admission(pod: Pod, configuration: Configuration) -> bool:
    """Return whether admission should have assigned the pod to gputile's scheduler, but did not."""
    ours, named = configuration.scheduler_name, pod.spec.scheduler_name or DEFAULT_SCHEDULER
    return bool(ours) and named == DEFAULT_SCHEDULER != ours and requests_gputile_gpu(pod)


def missed_admission_text(pod: Pod, configuration: Configuration) -> str | None:
    """Return why gputile's scheduler ignores a pod that missed admission, or None otherwise."""
    if not has_missed_admission(pod, configuration):
        return None
    return (
        "it was created while gputile's webhook did not run, so the scheduler "
        f"{configuration.scheduler_name} ignores it: delete it and create it again"
    )


def _holder_report(booking: Booking, gpu: GpuState, replicas: int) -> HolderReport:
    shares = [share for share in booking.gpus if share.uuid == gpu.gpu.uuid]
    mib, percent = booking.amounts(shares[0], gpu.total, replicas)
    mib, percent = len(shares) * mib, len(shares) * percent
    return HolderReport(booking.namespace, booking.name, mib, percent, booking.reserved)


def _nearness(state: NodeState | None, refused: Refusal[FitRule] | None) -> tuple[int, int]:
    """Return a key that sorts nodes from the closest fit to the farthest.

    Nodes that fail a later rule come first. Among nodes that fail the same rule, nodes with more
    free memory come first.
    """
    rule = FitRule.GPUS_TAKEN + 1 if refused is None else refused.rule
    free = (
        max((gpu.free for gpu in state.gpus if gpu.gpu.healthy), default=0)
        if state is not None
        else 0
    )
    return -int(rule), -free
