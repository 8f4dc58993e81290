"""Defines the objects of Dynamic Resource Allocation (resource.k8s.io/v1), and names of devices.

gputile publishes the GPUs of a node in a ResourceSlice. kube-scheduler allocates these devices to
ResourceClaims. gputile reads the claims, and never writes an allocation. The classes have only the
fields that gputile uses.
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

# Capacities of a device
MEMORY: Final = "memory"  # in bytes
CORES: Final = "cores"  # in percent of the GPU's compute, only in mode core_mem
PODS: Final = "pods"  # the number of claims that may share the device. Each claim consumes 1.

_DEVICE_PREFIX: Final = "gpu-"
_TOO_MUCH: Final = 1 << 24  # MiB or percent. Larger than any GPU, but sums do not overflow.


def claim_path(namespace: str, name: str) -> str:
    """Return the claim's path in the Kubernetes API."""
    return f"/apis/{RESOURCE_API}/namespaces/{namespace}/resourceclaims/{name}"


def device_name(index: int) -> str:
    """Return the name in ResourceSlices of the GPU with this index."""
    return f"{_DEVICE_PREFIX}{index}"


def gpu_index(device: str) -> int:
    """Return the index of the GPU with this device name, or -1 if the name is not of a GPU."""
    return (
        decimal(device.removeprefix(_DEVICE_PREFIX), 3) if device.startswith(_DEVICE_PREFIX) else -1
    )


# -- ResourceSlice: the devices that a driver offers


class DeviceAttribute(WireObject):
    """A value that selectors compare. Exactly one field is set."""

    int_value: int | None = msgspec.field(default=None, name="int")
    bool_value: bool | None = msgspec.field(default=None, name="bool")
    string_value: str | None = msgspec.field(default=None, name="string")
    version_value: str | None = msgspec.field(default=None, name="version")


class CapacityRange(WireObject):
    """CapacityRequestPolicyRange: amounts from ``min`` to ``max``.

    kube-scheduler rounds a request up to ``min`` plus a multiple of ``step``.
    """

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityPolicy(WireObject):
    """CapacityRequestPolicy: which amounts a claim may request, and the default amount."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(WireObject):
    """How much a device has of a capacity, and which amounts claims may request."""

    value: Quantity
    request_policy: CapacityPolicy | None = None


class DeviceTaint(WireObject):
    """A taint that keeps claims without a matching toleration off a device.

    The API server sets ``time_added`` if it is missing.
    """

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class SliceDevice(WireObject):
    """A device of a ResourceSlice.

    ``allow_multiple_allocations`` lets claims share the device (Kubernetes 1.36 or later).
    """

    name: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    taints: tuple[DeviceTaint, ...] = ()
    allow_multiple_allocations: bool | None = None


class ResourcePool(WireObject):
    """The pool of a ResourceSlice. Only the slices of the pool's highest generation are valid."""

    name: str
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(WireObject):
    """The spec of a ResourceSlice.

    kube-scheduler allocates the first device in ``devices`` that fits a claim.
    """

    driver: str
    pool: ResourcePool
    node_name: str = ""
    devices: tuple[SliceDevice, ...] = ()


class ResourceSlice(StoredObject, kw_only=True):
    """The devices that a driver offers on a node."""

    spec: ResourceSliceSpec


def slice_body(found: ResourceSlice) -> dict[str, Any]:
    """Return the request body for a slice. The encoder alone would leave out numbers that are 0."""
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


# -- ResourceClaim: a request for devices, and their allocation


class CapacityRequirements(WireObject):
    """How much of each capacity of a device a claim requests."""

    requests: dict[str, Quantity] = {}


class DeviceSelector(WireObject):
    """A condition on devices. gputile reads only whether a request has such conditions."""


class ExactDeviceRequest(WireObject):
    """A request for ``count`` devices of a class, or for all in ``allocation_mode`` "All"."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(ExactDeviceRequest):
    """One of several alternatives in a request."""

    name: str = ""


class DeviceRequest(WireObject):
    """A request for devices: one exact request, or the first alternative that is available."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(WireObject):
    """A condition on the devices of several requests. An empty ``requests`` means all requests."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(WireObject):
    """The devices that a claim requests."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()


class ResourceClaimSpec(WireObject):
    """The spec of a ResourceClaim, which is immutable."""

    devices: DeviceClaim = msgspec.field(default_factory=DeviceClaim)


class AllocatedDevice(WireObject):
    """DeviceRequestAllocationResult: a device, or share of a device, allocated to a request.

    ``driver``, ``pool`` and ``device`` identify the device. ``share_id`` identifies the share. It
    is None if the claim has the whole device.
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
        """Whether the device is a MIG instance, whose name contains ``-mig-``."""
        return "-mig-" in self.device

    @property
    def mib(self) -> int:
        """The consumed memory in MiB, rounded up. It is 0 if the amount is missing or invalid.

        The API server validates amounts. Only a direct write to the claim's status can store an
        invalid amount.
        """
        return min(math.ceil(_amount(self.consumed_capacity, MEMORY) / MIB), _TOO_MUCH)

    @property
    def percent(self) -> int:
        """The consumed compute in percent, rounded up, or 0 if the amount is missing or invalid."""
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
    """ResourceClaimConsumerReference: a pod or other object that may use the claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(WireObject):
    """The status of a ResourceClaim: the allocated devices, and the claim's consumers."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class ResourceClaim(StoredObject):
    """resource.k8s.io/v1 ResourceClaim."""

    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = msgspec.field(default_factory=ResourceClaimStatus)

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def gpus(self) -> tuple[AllocatedDevice, ...]:
        """The allocated devices of gputile's driver, without the devices of other drivers."""
        allocation = self.status.allocation
        found = allocation.devices.results if allocation is not None else ()
        return tuple(each for each in found if each.driver == DRIVER)

    @property
    def pods(self) -> tuple[ClaimConsumer, ...]:
        """The pods that the claim is reserved for."""
        return tuple(each for each in self.status.reserved_for if each.resource == "pods")


def claims_of(pod: Pod) -> list[str]:
    """Return the names of the pod's existing claims, which are in the pod's namespace."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    names = [
        each.resource_claim_name or made.get(each.name, "") for each in pod.spec.resource_claims
    ]
    return [name for name in names if name]
