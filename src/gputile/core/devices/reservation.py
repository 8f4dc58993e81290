"""Describes the GPUs that are kept for a pod until it is bound, and the pod annotation that says so.

The controller writes it. The plan of a pod that preempts others has this one pod. For a pod of a gang it is written
while the pod still waits behind its scheduling gate. It is part of a plan: the pods of a
gang that start together. One of them is the plan's first pod: the plan begins when that one is bound, which is done
only while all places of the plan are there, and still free for its pods. Nobody binds another one before.
"""

from typing import Annotated

import msgspec

from gputile.api.core import Pod
from gputile.api.well_known import RESERVATION_ANNOTATION
from gputile.core.devices.allocation import Allocation, check_allocation
from gputile.core.devices.gang_membership import MOST_MEMBERS
from gputile.core.devices.versioned_codec import VersionedCodec

VERSION = 1
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class ReservationError(ValueError):
    """The annotation of a reservation cannot be read."""


class Reservation(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One pod's place in a plan.

    ``plan`` is the plan's name, ``pods`` how many pods it has, and ``size`` how many of them get GPUs. ``allocation``
    is None for a pod that asks for no GPU, and on a node whose GPUs another device plugin hands out. It ends at
    ``expires_ns``, Unix time in nanoseconds. ``first`` marks the pod whose Binding begins the plan; a plan that is not
    to start has none. ``since_ns`` is since when GPUs have been reserved for the gang, by this plan or earlier
    ones that did not begin. ``preemption`` marks a place that other pods leave for a pod of higher priority.
    """

    plan: _Name
    size: Annotated[int, msgspec.Meta(ge=0, le=MOST_MEMBERS)]
    pods: Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMBERS)]
    node: _Name
    expires_ns: int
    allocation: Allocation | None = None
    first: bool = False
    since_ns: int = 0
    preemption: bool = False
    version: int = VERSION


def _check(reservation: Reservation) -> Reservation:
    if reservation.allocation is not None:
        check_allocation(reservation.allocation)
    return reservation


_CODEC = VersionedCodec(Reservation, VERSION, ReservationError, _check)
encode_reservation, decode_reservation = _CODEC.encode, _CODEC.decode


def reservation_of(pod: Pod) -> Reservation | None:
    """Return the reservation that a pod carries; None where it has none, or one that cannot be read."""
    text = pod.metadata.annotations.get(RESERVATION_ANNOTATION)
    if text is None:
        return None
    try:
        return decode_reservation(text)
    except ReservationError:
        return None
