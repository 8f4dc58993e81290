"""Defines the ledger's events: facts from the API server's watch, gputile's own binds, and time."""

from collections.abc import Sequence
from dataclasses import dataclass

from gputile.api.core import Node, Pod
from gputile.api.resource_claims import ResourceClaim
from gputile.core.ledger.booking import Booking


@dataclass(frozen=True, slots=True)
class PodApplied:
    """A pod was created or changed."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodRead:
    """A pod was read directly from the API server, ahead of the watch, at ``read_at`` (monotonic time in seconds).

    The watch and lists may be older, and a list may not have the pod yet. So the pod's booking counts as assumed until
    the watch reports it, and older versions are ignored.
    """

    pod: Pod
    read_at: float


@dataclass(frozen=True, slots=True)
class PodDeleted:
    """A pod object is gone."""

    uid: str


@dataclass(frozen=True, slots=True)
class PodsReplaced:
    """A complete list of the cluster's pods: bound pods that it does not have are gone.

    ``unreadable`` are the UIDs of pods that exist and cannot be parsed: their known state stays.
    """

    pods: Sequence[Pod]
    unreadable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeApplied:
    """A node was created or changed."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeDeleted:
    """A node object is gone. Bookings of its pods are kept until the pods are gone."""

    name: str


@dataclass(frozen=True, slots=True)
class NodesReplaced:
    """A complete list of the cluster's nodes. ``unreadable`` are names of nodes whose known state stays."""

    nodes: Sequence[Node]
    unreadable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClaimApplied:
    """A ResourceClaim was created or changed."""

    claim: ResourceClaim


@dataclass(frozen=True, slots=True)
class ClaimDeleted:
    """A ResourceClaim is gone."""

    uid: str


@dataclass(frozen=True, slots=True)
class ClaimsReplaced:
    """A complete list of the cluster's claims. ``unreadable`` are UIDs of claims whose known state stays."""

    claims: Sequence[ResourceClaim]
    unreadable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Assumed:
    """A Binding is about to be sent: its GPUs are booked until the watch confirms it or it is forgotten."""

    booking: Booking


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The API server has answered that the Binding was executed. The watch reports it too."""

    uid: str


@dataclass(frozen=True, slots=True)
class Doubted:
    """A complete list shows a bound pod as unbound, so the pod has to be read from the API server.

    Either the list is older than the Binding, or etcd was restored from a backup that is older.
    """

    uid: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A Binding was certainly not executed: the GPUs that were assumed for the pod are free again."""

    uid: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time is now ``now_ns`` (Unix time in nanoseconds): expired reservations are released."""

    now_ns: int


LedgerEvent = (
    PodApplied
    | PodRead
    | PodDeleted
    | PodsReplaced
    | NodeApplied
    | NodeDeleted
    | NodesReplaced
    | ClaimApplied
    | ClaimDeleted
    | ClaimsReplaced
    | Assumed
    | Confirmed
    | Doubted
    | Forgotten
    | TimePassed
)
