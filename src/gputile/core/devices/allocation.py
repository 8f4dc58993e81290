"""Describes the GPUs that a pod holds or has reserved, and the annotations that record them.

An allocation states MiB and GPU UUIDs. So its meaning does not change if the memory unit changes or
a GPU is removed. The Binding writes the allocation, and also annotations that the tools of gpushare
and ACK read (B9). gputile itself never reads the annotations of these tools. The controller writes
a reservation for a pod that preempts others or waits in a gang. ``placement.fit.choose_gpus``
decides which GPUs a pod gets.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec

from gputile.api.conversion import VersionedCodec
from gputile.api.core import Pod
from gputile.api.well_known import (
    ACK_ALLOCATION,
    ALLOCATION_ANNOTATION,
    GPUSHARE_ASSIGNED,
    GPUSHARE_ASSUME_TIME,
    GPUSHARE_DEVICE,
    GPUSHARE_INDEX,
    GPUSHARE_POD,
    MEMORY_UNIT_ANNOTATION,
    RESERVATION_ANNOTATION,
)
from gputile.core.devices.inventory import MOST_GPUS, MOST_MIB, Gpu, advertised_units
from gputile.core.devices.request import ContainerRequest, Phase, Request, RequestKind

VERSION = 1

GpuT = TypeVar("GpuT", bound=Hashable)
Uuid = Annotated[str, msgspec.Meta(min_length=1, max_length=96)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=MOST_GPUS)]
Mib = Annotated[int, msgspec.Meta(ge=0, le=MOST_MIB)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class AllocationError(ValueError):
    """The allocation annotation cannot be read."""


class GpuShare(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The part of one GPU that a pod or container has, in MiB and percent of compute."""

    uuid: Uuid
    index: Index
    mib: Mib
    percent: Percent = 0  # 0 if no compute is booked


class Allocation(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The GPUs of one pod."""

    # What the pod holds at its peak. A GPU is listed once for each of its time slices
    gpus: Annotated[tuple[GpuShare, ...], msgspec.Meta(min_length=1, max_length=MOST_GPUS)] = (
        msgspec.field(name="cards")
    )
    containers: dict[str, tuple[GpuShare, ...]]  # the part of each container
    unit_mib: Annotated[int, msgspec.Meta(ge=1, le=MOST_MIB)]  # the unit of the pod's gpu-mem
    version: int = VERSION
    mode: str = ""
    whole: bool = False  # no other pod may use the GPUs
    assumed_ns: int = 0  # the Unix time in nanoseconds at which the allocation was decided

    def decided_at(self, now_ns: int) -> "Allocation":
        return msgspec.structs.replace(self, assumed_ns=now_ns)


def allocate(request: Request, chosen: Sequence[Gpu], mode: str, now_ns: int) -> Allocation:
    """Build the allocation of the ``chosen`` GPUs. ``chosen`` has a GPU once per time slice."""
    if request.shape.kind is RequestKind.SHARED:
        shape, count = request.shape, len(chosen)
        gpus = tuple(GpuShare(gpu.uuid, gpu.index, shape.mib, shape.percent) for gpu in chosen)
        containers = {
            container.name: tuple(
                GpuShare(
                    c.uuid,
                    c.index,
                    container.units * request.unit_mib // count,
                    container.percent // count,
                )
                for c in gpus
            )
            for container in request.containers
        }
        return Allocation(gpus, containers, request.unit_mib, mode=mode, assumed_ns=now_ns)
    gpus = tuple(GpuShare(gpu.uuid, gpu.index, gpu.mib, 100) for gpu in chosen)
    containers = assign_whole(request.containers, Counter(gpus)) or {}
    return Allocation(gpus, containers, request.unit_mib, mode=mode, whole=True, assumed_ns=now_ns)


def assign_whole(
    containers: Iterable[ContainerRequest], slices: Mapping[GpuT, int]
) -> dict[str, tuple[GpuT, ...]] | None:
    """Return the GPUs of each container, or None if there are too few.

    ``slices`` has the number of containers that can use each GPU at once, which is 1 without
    time-slicing. All GPUs of one container are distinct. A container first gets the GPUs of ended
    init containers, since the kubelet reuses their devices, and then the GPUs with the most slices
    left.
    """
    left, ended, found = dict(slices), list[GpuT](), dict[str, tuple[GpuT, ...]]()
    for container in containers:
        inherited = ended[: container.gpus]
        free = [gpu for gpu, count in left.items() if count > 0 and gpu not in inherited]
        more = sorted(free, key=left.__getitem__, reverse=True)[: container.gpus - len(inherited)]
        if len(inherited) + len(more) < container.gpus:
            return None
        for gpu in more:
            left[gpu] -= 1
        if container.phase is Phase.INIT:
            ended += more
        else:
            del ended[: container.gpus]
        assigned = {*inherited, *more}
        found[container.name] = tuple(gpu for gpu in left if gpu in assigned)
    return found


def check_allocation(allocation: Allocation) -> Allocation:
    """Return ``allocation`` if it is consistent.

    ``gpus`` are the amounts booked in the ledger. ``containers`` are the limits that the node
    enforces. So no container may have more than is booked.

    Raises:
        AllocationError: a shared GPU is listed twice, two GPUs have the same index, or a container
            has more than the pod.
    """
    gpus = {share.uuid: share for share in allocation.gpus}
    indices = {share.index for share in allocation.gpus}
    count = len(gpus) if allocation.whole else len(allocation.gpus)
    if len(gpus) < count or len(indices) < len(gpus):
        raise AllocationError("a GPU is listed twice")
    for name, shares in allocation.containers.items():
        for share in shares:
            whole = gpus.get(share.uuid)
            if whole is None or whole.index != share.index:
                raise AllocationError(
                    f"container {name[:63]} has a GPU that is not among the pod's"
                )
            if share.mib > whole.mib or share.percent > whole.percent:
                raise AllocationError(
                    f"container {name[:63]} has more of GPU {share.index} than the pod"
                )
    return allocation


_CODEC = VersionedCodec(Allocation, VERSION, AllocationError, check_allocation)
encode_allocation, decode_allocation = _CODEC.encode, _CODEC.decode


TOOL_ANNOTATIONS = (
    ACK_ALLOCATION,
    GPUSHARE_ASSIGNED,
    GPUSHARE_ASSUME_TIME,
    GPUSHARE_DEVICE,
    GPUSHARE_INDEX,
    GPUSHARE_POD,
    MEMORY_UNIT_ANNOTATION,
)
"""The annotations that ``binding_annotations`` may write in addition to the allocation."""


def binding_annotations(allocation: Allocation, gpus: Sequence[Gpu], pod: Pod) -> dict[str, str]:
    """Return the annotations of a Binding: the allocation, and annotations for existing tools (B9).

    gpushare's ``ALIYUN_COM_GPU_MEM_*`` annotations support one GPU per pod, so only pods with one
    GPU get them. Every pod with shared GPUs gets ACK's allocation annotation. Tools that read this
    annotation accept only numbers as keys: the position of a container in ``spec.containers``, and
    the index of a GPU. These tools add up all amounts, so init containers are omitted.
    """
    annotations = {ALLOCATION_ANNOTATION: encode_allocation(allocation)}
    if allocation.whole:
        return annotations
    unit = allocation.unit_mib
    annotations[MEMORY_UNIT_ANNOTATION] = str(unit)
    annotations[ACK_ALLOCATION] = msgspec.json.encode(
        {
            str(place): {str(share.index): share.mib // unit for share in shares}
            for place, container in enumerate(pod.spec.containers)
            if (shares := allocation.containers.get(container.name))
        }
    ).decode()
    if len(allocation.gpus) == len(gpus) == 1:
        annotations |= {
            GPUSHARE_INDEX: str(allocation.gpus[0].index),
            GPUSHARE_POD: str(allocation.gpus[0].mib // unit),
            GPUSHARE_DEVICE: str(advertised_units(gpus[0], unit)),
            GPUSHARE_ASSIGNED: "false",
            GPUSHARE_ASSUME_TIME: str(allocation.assumed_ns),
        }
    return annotations


MOST_MEMBERS = 99_999  # of a gang
RESERVATION_VERSION = 1
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class ReservationError(ValueError):
    """The annotation of a reservation cannot be read."""


class Reservation(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The reservation of one pod in a plan of pods that start together.

    A pod that preempts others has a plan of its own.
    """

    plan: _Name  # the plan's name
    size: Annotated[int, msgspec.Meta(ge=0, le=MOST_MEMBERS)]  # the pods of the plan that get GPUs
    pods: Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMBERS)]  # all pods of the plan
    node: _Name
    expires_ns: int  # Unix time in nanoseconds
    # None if the pod requests no GPU, or if another device plugin manages the node's GPUs
    allocation: Allocation | None = None
    first: bool = False  # the pod that is bound first. A plan that must not start has none
    since_ns: int = 0  # when GPUs were first reserved for the gang, by this or an earlier plan
    preemption: bool = False  # the reservation of a preemptor, whose victims have to leave
    version: int = RESERVATION_VERSION


def _check_reservation(reservation: Reservation) -> Reservation:
    if reservation.allocation is not None:
        check_allocation(reservation.allocation)
    return reservation


_RESERVATION_CODEC = VersionedCodec(
    Reservation, RESERVATION_VERSION, ReservationError, _check_reservation
)
encode_reservation, decode_reservation = _RESERVATION_CODEC.encode, _RESERVATION_CODEC.decode


def reservation_of(pod: Pod) -> Reservation | None:
    """Return the reservation of a pod, or None if the pod has no readable reservation."""
    text = pod.metadata.annotations.get(RESERVATION_ANNOTATION)
    if text is None:
        return None
    try:
        return decode_reservation(text)
    except ReservationError:
        return None
