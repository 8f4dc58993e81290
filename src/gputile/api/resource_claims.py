"""Defines the objects of Dynamic Resource Allocation (resource.k8s.io/v1), and names of devices.

kube-scheduler allocates the devices of a node's ResourceSlice to ResourceClaims. gputile publishes
the slices and reads the claims; it never writes an allocation. Fields that gputile does not use are
left out.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

import msgspec

from gputile.api.conversion import WireObject
from gputile.api.core import Pod, Quantity, StoredObject
from gputile.api.quantity import MIB, QuantityError, decimal, parse_amount
from gputile.api.well_known import DRIVER

RESOURCE_API: Final = "resource.k8s.io/v1"
RESOURCE_CLAIMS_PATH: Final = f"/apis/{RESOURCE_API}/resourceclaims"
RESOURCE_SLICES_PATH: Final = f"/apis/{RESOURCE_API}/resourceslices"

MEMORY: Final = "memory"  # capacity of a device, in bytes
CORES: Final = "cores"  # capacity of a device, in percent of compute; in mode core_mem only
# capacity of a device: the number of claims that may share it; each consumes 1
PODS: Final = "pods"

_DEVICE_PREFIX: Final = "gpu-"
_TOO_MUCH: Final = 1 << 24  # MiB or percent; larger than any GPU, and small enough for sums


def claim_path(namespace: str, name: str) -> str:
    """Return the path of a claim in the API."""
    return f"/apis/{RESOURCE_API}/namespaces/{namespace}/resourceclaims/{name}"


def device_name(index: int) -> str:
    """Return the name in ResourceSlices of the GPU with this index."""
    return f"{_DEVICE_PREFIX}{index}"


def gpu_index(device: str) -> int:
    """Return the index of the GPU with this name in ResourceSlices; -1 if the name is of no GPU."""
    return (
        decimal(device.removeprefix(_DEVICE_PREFIX), 3) if device.startswith(_DEVICE_PREFIX) else -1
    )


# -- ResourceSlice: the devices that a driver offers


class DeviceAttribute(WireObject):
    """A value for selectors; exactly one field is set."""

    int_value: int | None = msgspec.field(default=None, name="int")
    bool_value: bool | None = msgspec.field(default=None, name="bool")
    string_value: str | None = msgspec.field(default=None, name="string")
    version_value: str | None = msgspec.field(default=None, name="version")


class CapacityRange(WireObject):
    """CapacityRequestPolicyRange: amounts from ``min`` to ``max``.

    Requests are rounded up to the next ``step``.
    """

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityPolicy(WireObject):
    """CapacityRequestPolicy: the amounts that a claim may request, and the default."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(WireObject):
    """The amount of a capacity, and how claims may request it."""

    value: Quantity
    request_policy: CapacityPolicy | None = None


class DeviceTaint(WireObject):
    """Repels claims without a matching toleration from a device.

    The API server sets a missing ``time_added``.
    """

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class SliceDevice(WireObject):
    """A device of a slice.

    ``allow_multiple_allocations`` lets several claims share it (Kubernetes 1.36 or later).
    """

    name: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    taints: tuple[DeviceTaint, ...] = ()
    allow_multiple_allocations: bool | None = None


class ResourcePool(WireObject):
    """The pool of a slice; only slices of the highest generation are valid."""

    name: str
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(WireObject):
    """The content of a slice.

    kube-scheduler allocates the first device that fits, in the order of ``devices``.
    """

    driver: str
    pool: ResourcePool
    node_name: str = ""
    devices: tuple[SliceDevice, ...] = ()


class ResourceSlice(StoredObject, kw_only=True):
    """The devices that a driver offers on a node."""

    spec: ResourceSliceSpec


def slice_body(found: ResourceSlice) -> dict[str, Any]:
    """Return the request body for a slice, with its kind and with required numbers that are 0."""
    body: dict[str, Any] = {
        "apiVersion": RESOURCE_API,
        "kind": "ResourceSlice",
        **msgspec.to_builtins(found),
    }
    pool = found.spec.pool
    body["spec"]["pool"] = {
        "name": pool.name,
        "generation": pool.generation,
        "resourceSliceCount": pool.resource_slice_count,
    }
    return body


# -- ResourceClaim: the request of a pod, and its allocation


class CapacityRequirements(WireObject):
    """The requested amounts of a device's capacities."""

    requests: dict[str, Quantity] = {}


class DeviceSelector(WireObject):
    """A condition on devices; only its presence matters."""


class ExactDeviceRequest(WireObject):
    """A request for ``count`` devices of a class, or for all with ``allocation_mode`` "All"."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(ExactDeviceRequest):
    """An alternative of a request."""

    name: str = ""


class DeviceRequest(WireObject):
    """A request: exact, or the first available of several alternatives."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(WireObject):
    """A condition on the devices of several requests; an empty ``requests`` means all of them."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(WireObject):
    """The devices that a claim requests."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()


class ResourceClaimSpec(WireObject):
    """The request of a claim; it is immutable."""

    devices: DeviceClaim = msgspec.field(default_factory=DeviceClaim)


class AllocatedDevice(WireObject):
    """DeviceRequestAllocationResult: a device, or a share of one, that was allocated to a request.

    ``driver``, ``pool`` and ``device`` identify the device. ``share_id`` identifies a share; it is
    None if the claim has the whole device.
    """

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] = {}

    @property
    def is_instance(self) -> bool:
        """Whether it is named as a MIG instance: by its GPU and its UUID."""
        return "-mig-" in self.device

    @property
    def mib(self) -> int:
        """The consumed memory in MiB, rounded up; 0 if it is missing or invalid.

        The API server validates amounts; an invalid one is possible only by a write to the claim's
        status.
        """
        return min(math.ceil(_amount(self.consumed_capacity, MEMORY) / MIB), _TOO_MUCH)

    @property
    def percent(self) -> int:
        """The consumed compute in percent, rounded up; 0 if it is missing or invalid."""
        return min(math.ceil(_amount(self.consumed_capacity, CORES)), _TOO_MUCH)


def _amount(amounts: Mapping[str, Quantity], name: str) -> Fraction:
    try:
        return parse_amount(amounts.get(name, 0))
    except QuantityError:
        return Fraction(0)


class DeviceAllocation(WireObject):
    """DeviceAllocationResult: the devices of an allocation."""

    results: tuple[AllocatedDevice, ...] = ()


class ClaimAllocation(WireObject):
    """AllocationResult: the devices that kube-scheduler has allocated to a claim."""

    devices: DeviceAllocation = msgspec.field(default_factory=DeviceAllocation)


class ClaimConsumer(WireObject):
    """ResourceClaimConsumerReference: an object, usually a pod, that may use the claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(WireObject):
    """Whether the claim is allocated, and for whom."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class ResourceClaim(StoredObject):
    """A claim for devices."""

    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = msgspec.field(default_factory=ResourceClaimStatus)

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def gpus(self) -> tuple[AllocatedDevice, ...]:
        """The allocated devices of gputile's driver; a claim may also have devices of others."""
        allocation = self.status.allocation
        found = allocation.devices.results if allocation is not None else ()
        return tuple(each for each in found if each.driver == DRIVER)

    @property
    def pods(self) -> tuple[ClaimConsumer, ...]:
        """The pods that the claim is reserved for."""
        return tuple(each for each in self.status.reserved_for if each.resource == "pods")


def claims_of(pod: Pod) -> list[str]:
    """Return the names of the pod's existing claims, in its namespace."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    names = [
        each.resource_claim_name or made.get(each.name, "") for each in pod.spec.resource_claims
    ]
    return [name for name in names if name]
