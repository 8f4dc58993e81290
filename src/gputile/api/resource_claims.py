"""Defines the slim objects of Dynamic Resource Allocation (resource.k8s.io/v1), and names devices.

kube-scheduler allocates the devices of a node's ResourceSlice to ResourceClaims. gputile publishes the slices and reads
the claims; it never writes an allocation. Fields that gputile neither reads nor writes are left out.
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

MEMORY: Final = "memory"  # capacity of a device: bytes
CORES: Final = "cores"  # capacity of a device: percent of compute, in mode core_mem only
PODS: Final = "pods"  # capacity of a device: how many claims may share it, of which each takes one

_DEVICE_PREFIX: Final = "gpu-"
_TOO_MUCH: Final = 1 << 24  # MiB or percent; no GPU has so much, and what is more counts as this, to be added up


def claim_path(namespace: str, name: str) -> str:
    """Return the path of one claim at the API server."""
    return f"/apis/{RESOURCE_API}/namespaces/{namespace}/resourceclaims/{name}"


def device_name(index: int) -> str:
    """Return how a ResourceSlice names the GPU with this index."""
    return f"{_DEVICE_PREFIX}{index}"


def gpu_index(device: str) -> int:
    """Return the index of the GPU that a ResourceSlice names so; -1 for the name of no GPU."""
    return decimal(device.removeprefix(_DEVICE_PREFIX), 3) if device.startswith(_DEVICE_PREFIX) else -1


# -- ResourceSlice: what a driver offers


class DeviceAttribute(WireObject):
    """A value that selectors can compare: one of the four is set."""

    int_value: int | None = msgspec.field(default=None, name="int")
    bool_value: bool | None = msgspec.field(default=None, name="bool")
    string_value: str | None = msgspec.field(default=None, name="string")
    version_value: str | None = msgspec.field(default=None, name="version")


class CapacityRange(WireObject):
    """CapacityRequestPolicyRange: amounts from ``min`` to ``max``; requests are rounded up to the next ``step``."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityPolicy(WireObject):
    """CapacityRequestPolicy: which amounts a claim may take, and the one that it takes without naming one."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(WireObject):
    """How much there is of something that claims share."""

    value: Quantity
    request_policy: CapacityPolicy | None = None


class DeviceTaint(WireObject):
    """Keeps claims without a matching toleration off a device; the API server sets ``time_added`` where it lacks."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class SliceDevice(WireObject):
    """A device of a slice. ``allow_multiple_allocations`` lets several claims share it: Kubernetes 1.36 or later."""

    name: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    taints: tuple[DeviceTaint, ...] = ()
    allow_multiple_allocations: bool | None = None


class ResourcePool(WireObject):
    """The pool of a slice; only slices of its highest generation count."""

    name: str
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(WireObject):
    """What a slice offers. kube-scheduler takes the first device that fits, in the order of ``devices``."""

    driver: str
    pool: ResourcePool
    node_name: str = ""
    devices: tuple[SliceDevice, ...] = ()


class ResourceSlice(StoredObject, kw_only=True):
    """The devices that a driver offers on a node."""

    spec: ResourceSliceSpec


def slice_body(found: ResourceSlice) -> dict[str, Any]:
    """Return a slice as it is sent: with its kind, and with numbers that have to be there although they are 0."""
    body: dict[str, Any] = {"apiVersion": RESOURCE_API, "kind": "ResourceSlice", **msgspec.to_builtins(found)}
    pool = found.spec.pool
    body["spec"]["pool"] = {
        "name": pool.name,
        "generation": pool.generation,
        "resourceSliceCount": pool.resource_slice_count,
    }
    return body


# -- ResourceClaim: what a pod asks for, and gets


class CapacityRequirements(WireObject):
    """The amounts of a device's capacities that a request takes."""

    requests: dict[str, Quantity] = {}


class DeviceSelector(WireObject):
    """A condition on devices, of which only matters that it is there."""


class ExactDeviceRequest(WireObject):
    """A request for ``count`` devices of a class; ``allocation_mode`` "All" asks for all devices that match."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(ExactDeviceRequest):
    """One of the alternatives of a request."""

    name: str = ""


class DeviceRequest(WireObject):
    """A request: either exact, or the first of several alternatives that can be had."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(WireObject):
    """A condition on the devices of several requests together; ``requests`` () is all of them."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(WireObject):
    """The devices that a claim asks for."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()


class ResourceClaimSpec(WireObject):
    """What a claim asks for; nobody can change it."""

    devices: DeviceClaim = msgspec.field(default_factory=DeviceClaim)


class AllocatedDevice(WireObject):
    """DeviceRequestAllocationResult: a device, or a share of one, that a request got.

    The driver, pool and device name the device. ``share_id`` tells the shares of a device apart; it is missing where a
    claim has the device for itself.
    """

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] = {}

    @property
    def mib(self) -> int:
        """The memory that it takes in MiB, a part of one counted as one; 0 where it names none or no amount.

        The API server checks amounts, so that only who may write a claim's status could store another.
        """
        return min(math.ceil(_amount(self.consumed_capacity, MEMORY) / MIB), _TOO_MUCH)

    @property
    def percent(self) -> int:
        """The compute that it takes in percent; 0 where it names none or no amount."""
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
    """AllocationResult: what kube-scheduler has allocated to a claim."""

    devices: DeviceAllocation = msgspec.field(default_factory=DeviceAllocation)


class ClaimConsumer(WireObject):
    """ResourceClaimConsumerReference: an object, in practice a pod, that may use the claim."""

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
        """What is allocated of gputile's devices; claims can ask several drivers."""
        allocation = self.status.allocation
        found = allocation.devices.results if allocation is not None else ()
        return tuple(each for each in found if each.driver == DRIVER)

    @property
    def pods(self) -> tuple[ClaimConsumer, ...]:
        """The pods that the claim is reserved for."""
        return tuple(each for each in self.status.reserved_for if each.resource == "pods")


def claims_of(pod: Pod) -> list[str]:
    """Return the names of the pod's claims, in its namespace; one that has not been made yet is not among them."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    names = [each.resource_claim_name or made.get(each.name, "") for each in pod.spec.resource_claims]
    return [name for name in names if name]
