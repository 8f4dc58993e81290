"""Records which pod holds which GPUs, from watched objects and from gputile's own Bindings.

The API server is the store. The ledger is a cache, which can be rebuilt from a list of nodes and
pods. Its state depends only on the latest version of each object and on assumed bookings, not on
the order in which objects arrive. Tests compare it with a ledger rebuilt from the objects. The
ledger decides no placement: ``core.scheduling.placement_engine`` does.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence, Set

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod, is_older
from gputile.api.resource_claims import ResourceClaim
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.ledger.booking import (
    DOUBTED,
    Booking,
    Claims,
    booking_of,
    claim_booking,
    claim_node,
)
from gputile.core.ledger.booking_index import (
    BookingIndex,
    PlanBookings,
    Reservations,
    reserved_booking,
)
from gputile.core.ledger.node_arrays import Changes, NodeTable, NonGpuPods
from gputile.core.ledger.node_info import GpuState, NodeInfo, NodeState, ServingMode, node_info_of

_A_STEP = 128  # the number of pods that are released before other tasks may run


class LedgerError(Exception):
    """A booking contradicts the bookings in the ledger."""


class Ledger:
    """The bookings of all pods, for use by one thread only."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.changes = Changes()
        self._table = NodeTable()
        self.node_arrays = self._table.node_arrays
        self.row_of = self._table.row_of
        self._bookings = BookingIndex()
        self._reservations = Reservations()
        self.claims = Claims()
        self._non_gpu_pods = NonGpuPods()
        self._reserves_gpus = any(
            configuration.reserves_gpus(preemption=each) for each in (False, True)
        )

    def snapshot(self) -> "Ledger":
        """Return a private copy on which a plan can be computed.

        The copy may be changed like the ledger, and is discarded afterwards. Arrays and maps are
        copied. Their values are immutable, or are copied before they are changed.
        """
        copy = Ledger(self.configuration)
        copy._table = self._table.copy()
        copy.node_arrays, copy.row_of = copy._table.node_arrays, copy._table.row_of
        copy._bookings = self._bookings.copy()
        copy._reservations = self._reservations.copy()
        copy.claims = self.claims.copy()
        copy._non_gpu_pods = self._non_gpu_pods.copy()
        return copy

    # -- pods

    def apply_pod(self, pod: Pod) -> None:
        """Record a pod that was created or changed, unless a newer version is known."""
        known = self._bookings.get(pod.metadata.uid)
        version = pod.metadata.resource_version
        if known is None or known.reserved or not is_older(version, known.version):
            self._set_pod(pod)

    def apply_read_pod(self, pod: Pod, read_at: float) -> None:
        """Record a pod that was read directly from the API server.

        ``read_at`` is monotonic time in seconds. The watch may lag behind the read, and a list may
        not have the pod yet. So the pod's booking counts as assumed until the watch reports the
        pod, and older versions are ignored.
        """
        before = self._bookings.get(pod.metadata.uid)
        self._set_pod(pod)
        booking = self._bookings.get(pod.metadata.uid)
        known_to_watch = before is not None and before.begun
        if booking is not None and not booking.reserved and not known_to_watch:
            version = pod.metadata.resource_version
            self._bookings.set(
                msgspec.structs.replace(booking, assumed_at=read_at, version=version)
            )

    def remove_pod(self, uid: str) -> None:
        self._reservations.store(uid, None)
        self._release(uid)
        self._charge(self._non_gpu_pods.drop(uid))

    def replace_pods(self, pods: Sequence[Pod], unreadable: Set[str] = frozenset()) -> None:
        """Record a complete list of pods. Release the bookings of bound pods that are not listed.

        ``unreadable`` are the UIDs of pods that exist but cannot be parsed. Their state is
        unchanged.
        """
        for _ in self.release_gone({pod.metadata.uid for pod in pods} | unreadable):
            pass
        for pod in pods:
            self.apply_pod(pod)

    def release_gone(self, listed: Set[str]) -> Generator[None, None, None]:
        """Release, in steps, the bookings of pods that a list no longer has.

        ``listed`` are the UIDs in the list. Bookings of claims are kept, since claims are listed
        separately. Assumed bookings are kept, even if they are added between two steps. They may be
        newer than the list, and are confirmed or released later. The watch of pods must be paused
        until the last step.
        """
        known = self._bookings.uids()
        gone = [uid for uid in known if uid not in listed and uid not in self.claims]
        for number, uid in enumerate(gone, 1):
            booking = self._bookings.get(uid)
            if booking is not None and booking.assumed_at is None:
                self._release(uid)
            if number % _A_STEP == 0:
                yield
        self._reservations.retain(listed, self._bookings.uids())
        for number, uid in enumerate(self._non_gpu_pods.uids() - listed, 1):
            self._charge(self._non_gpu_pods.drop(uid))
            if number % _A_STEP == 0:
                yield

    def _set_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        booking = booking_of(pod, self.configuration.unit_mib, self.configuration.trust_group)
        known = self._bookings.get(uid)
        self._charge(
            self._non_gpu_pods.set(pod) if booking is None else self._non_gpu_pods.drop(uid)
        )
        if booking is not None or pod.finished or pod.spec.node_name:
            self._reservations.store(uid, None)
            if booking is None or booking != known:
                self._release(uid)
                if booking is not None:
                    self._book(booking)
        # A bound pod is never unbound. If an unbound pod has a confirmed booking, this version of
        # the pod is older than its Binding.
        elif self._reserves_gpus and not (known is not None and known.begun):
            self._set_reservation(pod, known)

    # -- gputile's own Bindings

    def assume(self, booking: Booking) -> None:
        """Book the GPUs of a Binding that is about to be sent.

        The GPUs stay booked until the watch confirms the Binding or ``forget`` is called.

        Raises:
            LedgerError: the pod already has GPUs.
        """
        known = self._bookings.get(booking.uid)
        self._release_reservation(booking.uid)
        if known is not None and not known.reserved:
            raise LedgerError(f"pod {booking.key} already has GPUs of node {known.node}")
        self._book(booking)

    def confirm(self, uid: str) -> None:
        """Record that a pod's Binding was executed, before the watch reports the pod."""
        booking = self._bookings.get(uid)
        if booking is not None and booking.assumed_at is not None:
            self._bookings.set(msgspec.structs.replace(booking, assumed_at=None))

    def doubt(self, uid: str) -> None:
        """Record that a complete list shows a bound pod as unbound.

        The pod has to be read from the API server. Either the list is older than the Binding, or
        etcd was restored from an older backup.
        """
        booking = self._bookings.get(uid)
        if booking is not None and booking.begun:
            self._bookings.set(msgspec.structs.replace(booking, assumed_at=DOUBTED))

    def forget(self, uid: str) -> None:
        """Release the GPUs assumed for a Binding that is known not to have been executed."""
        booking = self._bookings.get(uid)
        if booking is not None and booking.assumed_at is not None:
            self._release(uid)
            self._restore_reservation(uid)

    # -- claims

    def apply_claim(self, claim: ResourceClaim) -> None:
        self.claims.apply(claim)
        group = self.configuration.trust.group_of(claim.metadata.namespace)
        booking = claim_booking(claim, self.info_of(claim_node(claim)), group)
        if booking != self._bookings.get(claim.metadata.uid):
            self._release(claim.metadata.uid)
            if booking is not None:
                self._book(booking)

    def remove_claim(self, uid: str) -> None:
        self.claims.drop(uid)
        self._release(uid)

    def replace_claims(
        self, claims: Sequence[ResourceClaim], unreadable: Set[str] = frozenset()
    ) -> None:
        """Record a complete list of claims. Claims with ``unreadable`` UIDs keep their state."""
        listed = {claim.metadata.uid for claim in claims} | unreadable
        for uid in self.claims.uids():
            if uid not in listed:
                self.remove_claim(uid)
        for claim in claims:
            self.apply_claim(claim)

    def _reread_claims(self, node: str) -> None:
        """Book a node's claims again, since their devices may now be other GPUs, or unknown."""
        for booking in list(self._bookings.on_node(node)):
            claim = self.claims.get(booking.uid)
            if claim is not None:
                self.apply_claim(claim)

    # -- reservations

    def set_time(self, now_ns: int) -> None:
        """Release the reservations that have expired at ``now_ns``, Unix time in nanoseconds.

        If the clock was ahead and has been corrected, reservations are in force again.
        """
        self._reservations.now_ns = now_ns
        for uid in self._reservations.uids():
            if self._reservations.get(uid) is None:
                self._release_reservation(uid)
            else:
                self._restore_reservation(uid)

    def _set_reservation(self, pod: Pod, known: Booking | None) -> None:
        uid = pod.metadata.uid
        self._reservations.store(uid, reserved_booking(pod, self.configuration))
        reservation = self._reservations.get(uid)
        if known is not None and known.reserved:
            if reservation is None or known != reservation:
                self._release(uid)
            else:
                self._bookings.set(reservation)
        self._restore_reservation(uid)

    def _restore_reservation(self, uid: str) -> None:
        reservation = self._reservations.get(uid)
        if reservation is not None and self._bookings.get(uid) is None:
            self._book(reservation)

    def _release_reservation(self, uid: str) -> None:
        booking = self._bookings.get(uid)
        if booking is not None and booking.reserved:
            self._release(uid)

    # -- nodes

    def apply_node(self, node: Node) -> None:
        node_info = node_info_of(node, self.configuration)
        row = self._table.set(node_info)
        if row is None:
            return
        self._table.charge(row, self._non_gpu_pods.on_node(node_info.name))
        bookings = self._bookings.on_node(node_info.name)
        for booking in bookings:
            self._table.count(row, booking, 1, bookings)
        self._reread_claims(node_info.name)
        self._refresh_serving_mode(row, node_info.name)
        self.changes.add(row)

    def remove_node(self, name: str) -> None:
        """Record that a node is gone. The bookings of its pods are kept until the pods are gone."""
        row = self._table.drop(name)
        if row is not None:
            self.changes.add(row)
            self._reread_claims(name)

    def replace_nodes(self, nodes: Sequence[Node], unreadable: Set[str] = frozenset()) -> None:
        """Record a complete list of nodes. Nodes with ``unreadable`` names keep their state."""
        for name in self.row_of.keys() - {node.metadata.name for node in nodes} - unreadable:
            self.remove_node(name)
        for node in nodes:
            self.apply_node(node)

    def _refresh_serving_mode(self, row: int, name: str) -> None:
        """Block the node if the GPUs of one of its pods are unknown. Otherwise, unblock it."""
        self._table.block(row, blocked=bool(self.unplaced(name)))

    def _charge(self, changes: Iterable[tuple[str, HostResources]]) -> None:
        for node, host in changes:
            row = self.row_of.get(node)
            if row is not None:
                self._table.charge(row, host)
                self.changes.add(row)

    # -- bookings

    def _book(self, booking: Booking) -> None:
        self._bookings.set(booking)
        self._count(booking, 1)

    def _release(self, uid: str) -> None:
        booking = self._bookings.pop(uid)
        if booking is not None:
            self._count(booking, -1)

    def _count(self, booking: Booking, sign: int) -> None:
        """Add (1) or remove (-1) a booking in the arrays."""
        row = self.row_of.get(booking.node)
        if row is not None:
            if not self._table.count(row, booking, sign, self._bookings.on_node(booking.node)):
                self._refresh_serving_mode(row, booking.node)
            self.changes.add(row)

    # -- questions

    def node_info(self, row: int) -> NodeInfo | None:
        return self._table.node_info(row)

    def info_of(self, name: str) -> NodeInfo | None:
        row = self.row_of.get(name)
        return self._table.node_info(row) if row is not None else None

    def state(self, name: str) -> NodeState | None:
        """Return a node with the bookings of its GPUs, or None if the node is unknown."""
        row, info = self.row_of.get(name), self.info_of(name)
        if row is None or info is None:
            return None
        arrays = self.node_arrays
        gpus = tuple(
            GpuState(
                gpu=gpu,
                total=int(arrays.total[row, i]),
                used=int(arrays.used[row, i]),
                percent=int(arrays.percent[row, i]),
                pods=int(arrays.pods[row, i]),
                group=int(arrays.group[row, i]),
            )
            for i, gpu in enumerate(info.inventory.gpus)
        )
        closed = arrays.serving_mode[row] == ServingMode.BLOCKED
        blocked_by = tuple(booking.key for booking in self.unplaced(name)) if closed else ()
        mode = ServingMode.BLOCKED if blocked_by else info.serving_mode
        return NodeState(info, mode, gpus, blocked_by)

    def nodes(self) -> Iterator[tuple[int, NodeInfo]]:
        return self._table.nodes()

    def booking(self, uid: str) -> Booking | None:
        return self._bookings.get(uid)

    def bookings(self) -> Iterator[Booking]:
        return iter(self._bookings)

    def on_node(self, name: str) -> Iterator[Booking]:
        return iter(self._bookings.on_node(name))

    def plan(self, name: str) -> PlanBookings:
        """Return the bookings of a gang's plan. An unknown plan has no bookings."""
        return self._bookings.plan(name)

    def reserved(self) -> Iterator[Booking]:
        """Yield the reservations that are in force."""
        for uid in self._reservations.uids():
            booking = self._bookings.get(uid)
            if booking is not None and booking.reserved:
                yield booking

    def on_gpu(self, node: str, uuid: str) -> Iterator[Booking]:
        return (b for b in self.on_node(node) if b.on_gpu(uuid))

    def unplaced(self, node: str) -> list[Booking]:
        """Return the bookings on a node that cannot be assigned to GPUs.

        Each of these bookings names no GPU, names a GPU that the node does not have, or has several
        time slices of a GPU that is not time-sliced. Reservations are not included, since their
        pods are not on the node yet.
        """
        info = self.info_of(node)

        def is_unplaced(booking: Booking) -> bool:
            if booking.allocation is None or info is None or booking.reserved:
                return booking.allocation is None
            several = booking.time_sliced and not info.sliced
            return several or any(info.column(share.uuid) is None for share in booking.gpus)

        return list(filter(is_unplaced, self.on_node(node)))

    def overdue(self, now: float, age: float) -> list[Booking]:
        """Return the unconfirmed bookings that were assumed at least ``age`` seconds ago.

        ``now`` is monotonic time in seconds.
        """
        return [b for b in self._bookings if b.assumed_at is not None and now - b.assumed_at >= age]
