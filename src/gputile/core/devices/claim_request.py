"""Parses the requests of a ResourceClaim into values of ``Shape``, which placement uses.

kube-scheduler allocates claims. gputile ranks nodes and predicts the GPU, so it must read amounts
as kube-scheduler does: rounded up to the next step, with the defaults of the node's ResourceSlice.
Only requests for gputile's two DeviceClasses are read. CEL selectors are not evaluated, since
kube-scheduler itself excludes nodes without a match.
"""

import math
from fractions import Fraction

from gputile.api.quantity import MIB, QuantityError, parse_quantity
from gputile.api.resource_claims import (
    CORES,
    MEMORY,
    PODS,
    ExactDeviceRequest,
    ResourceClaim,
)
from gputile.api.well_known import DRIVER, GPU_CLASS, SHARE_CLASS
from gputile.core.devices.inventory import MOST_GPUS, MOST_MIB
from gputile.core.devices.request import (
    MOST_PERCENT,
    PERCENT_STEP,
    RequestError,
    RequestKind,
    Shape,
)

CLAIM_UNIT_MIB = 1
"""The memory unit of nodes that offer GPUs by claims. Claims may request any number of MiB."""

# Attributes whose value is different for each GPU of a node
_DISTINCT = (f"{DRIVER}/uuid", f"{DRIVER}/index")


def asks_for_gpus(claim: ResourceClaim) -> bool:
    """Return whether a request of the claim names one of gputile's DeviceClasses."""
    return any(each.device_class_name in (SHARE_CLASS, GPU_CLASS) for _, each in _requests(claim))


def parse_claim(claim: ResourceClaim) -> tuple[Shape, ...]:
    """Return the shapes of a claim's requests, in kube-scheduler's order of allocation.

    The GPUs of one shape are distinct. Different shapes may get shares of the same GPU. If a
    request has alternatives, only the first alternative is read.

    Raises:
        RequestError: no GPU can ever serve a request, or a request does not state its amount.
    """
    shapes: list[Shape] = []
    for name, request in _requests(claim):
        where = f"claim {claim.metadata.name}: spec.devices.requests[{name}]"
        if request.device_class_name not in (SHARE_CLASS, GPU_CLASS):
            continue
        if request.admin_access:
            raise RequestError(
                f"{where}.adminAccess: it would use a GPU that is booked for others: remove it"
            )
        if request.allocation_mode == "All":
            raise RequestError(
                f"{where}.allocationMode: All depends on the node: set count to a number of GPUs"
            )
        if not 1 <= request.count <= MOST_GPUS:
            raise RequestError(f"{where}.count is {request.count}: ask for 1 to {MOST_GPUS} GPUs")
        if request.device_class_name == GPU_CLASS:
            shapes.append(Shape(RequestKind.WHOLE, request.count, by_claims=True))
            continue
        mib, percent = _share(request, f"{where}.capacity.requests")
        distinct = any(
            each.distinct_attribute in _DISTINCT and (not each.requests or name in each.requests)
            for each in claim.spec.devices.constraints
        )
        gpus = request.count if distinct else 1
        share = Shape(
            RequestKind.SHARED, gpus, mib, percent, unit_mib=CLAIM_UNIT_MIB, by_claims=True
        )
        shapes += [share] * (request.count // gpus)
    return tuple(shapes)


def _requests(claim: ResourceClaim) -> list[tuple[str, ExactDeviceRequest]]:
    requests: list[tuple[str, ExactDeviceRequest]] = []
    for each in claim.spec.devices.requests:
        found = each.exactly or next(iter(each.first_available), None)
        if found is not None:
            requests.append((each.name, found))
    return requests


def _share(request: ExactDeviceRequest, where: str) -> tuple[int, int]:
    """Return the MiB and percent of a GPU that a request needs."""
    amounts = request.capacity.requests if request.capacity is not None else {}
    for name in amounts:
        if name not in (MEMORY, CORES, PODS):
            meant = name.removeprefix(f"{DRIVER}/")
            remedy = (
                f"write {meant}" if meant in (MEMORY, CORES) else f"a GPU has {MEMORY} and {CORES}"
            )
            raise RequestError(f"{where}: no GPU has a capacity of the name {name[:80]}: {remedy}")
    if MEMORY not in amounts:
        raise RequestError(
            f"{where}: without {MEMORY} it gets all of a GPU: add {MEMORY}, or ask for class "
            f"{GPU_CLASS}"
        )
    mib = math.ceil(_positive(amounts[MEMORY], f"{where}.{MEMORY}") / MIB)
    if mib > MOST_MIB:
        raise RequestError(f"{where}.{MEMORY}: {mib} MiB are more than any GPU has: ask for less")
    percent = 0
    if CORES in amounts:
        steps = math.ceil(_positive(amounts[CORES], f"{where}.{CORES}") / PERCENT_STEP)
        percent = PERCENT_STEP * steps
    if percent > MOST_PERCENT:
        raise RequestError(
            f"{where}.{CORES}: a GPU has {MOST_PERCENT} percent of compute: ask for less"
        )
    if PODS in amounts and _positive(amounts[PODS], f"{where}.{PODS}") > 1:
        raise RequestError(f"{where}.{PODS}: a claim counts as one pod of its GPU: remove it")
    return mib, percent


def _positive(value: str | int | float, where: str) -> Fraction:
    try:
        amount = parse_quantity(value)
    except QuantityError as error:
        raise RequestError(f"{where}: {error}") from error
    if amount <= 0:
        raise RequestError(f"{where} is {value}: ask for more than 0, or remove it")
    return amount
