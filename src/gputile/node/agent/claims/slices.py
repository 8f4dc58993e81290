"""Builds the ResourceSlice that offers a node's GPUs to claims.

kube-scheduler allocates the first device of the slice that fits. A slice must not depend on the use
of the GPUs, for two reasons: each change makes kube-scheduler retry all pods that wait for devices,
and an autoscaler copies the slice of an existing node for new nodes of the same group. In the modes
with isolation, several claims may share a GPU. In all other modes, a device has only one claim.
"""

import re
from collections.abc import Iterator
from typing import Final

from gputile.api.core import Node, ObjectMeta, OwnerReference
from gputile.api.resource_claims import (
    CORES,
    MEMORY,
    PODS,
    CapacityPolicy,
    CapacityRange,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTaint,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
    device_name,
    gpu_index,
)
from gputile.api.well_known import DRIVER, MIG_PREFIX, Mode
from gputile.core.devices.inventory import CORE_PERCENT, Gpu
from gputile.node.agent.node_config import MigDevice, NodeConfig
from gputile.node.nvml.probe import Mig, ProbedGpu, ProbedMachine

BUS_ID: Final = "resource.kubernetes.io/pciBusID"
UNHEALTHY_TAINT: Final = "gputile.io/unhealthy"
CORE_STEP: Final = 5
_LONGEST_STRING: Final = 64
_LONGEST_NAME: Final = 63
# A slice has at most 128 devices, and 64 if one has taints (``ResourceSliceMaxDevices*``).
_MOST_WITH_TAINTS: Final = 64


def instance_name(instance: MigDevice) -> str:
    """Return a MIG instance's name in a ResourceSlice, built from its GPU's name and its UUID."""
    name = f"{device_name(instance.index)}-{instance.uuid.lower()}"
    return re.sub(r"[^a-z0-9-]", "-", name)[:_LONGEST_NAME].strip("-")


def slice_name(node: Node) -> str:
    return f"{node.metadata.name}-{DRIVER}"


def device_named(config: NodeConfig, name: str) -> Gpu | MigDevice | None:
    """Return the GPU or MIG instance with this name in a ResourceSlice, or None."""
    index = gpu_index(name)
    gpu = next((gpu for gpu in config.inventory.gpus if gpu.index == index), None)
    return gpu or next((each for each in config.instances if instance_name(each) == name), None)


def slice_of(
    node: Node, config: NodeConfig, machine: ProbedMachine, most_pods: int, *, taints: bool = True
) -> ResourceSlice:
    """Build the slice of a node. At most ``most_pods`` claims may share a GPU.

    Unhealthy devices have a taint. They are omitted if the API server does not support ``taints``,
    or if there are more devices than it accepts in a slice with taints.
    """
    meta = node.metadata
    owner = OwnerReference(
        api_version="v1", kind="Node", name=meta.name, uid=meta.uid, controller=True
    )
    found = list(_devices(config, machine, most_pods))
    if not taints or len(found) > _MOST_WITH_TAINTS:
        found = [each for each in found if not each.taints]
    return ResourceSlice(
        metadata=ObjectMeta(name=slice_name(node), owner_references=(owner,)),
        spec=ResourceSliceSpec(
            driver=DRIVER,
            pool=ResourcePool(name=meta.name, generation=1),
            node_name=meta.name,
            devices=tuple(found),
        ),
    )


def dropped_fields(wanted: ResourceSlice, stored: ResourceSlice) -> frozenset[str]:
    """Return the fields that the API server dropped because their feature gates are disabled."""
    there, lost = {each.name: each for each in stored.spec.devices}, set()
    for device in wanted.spec.devices:
        kept = there.get(device.name, SliceDevice(name=device.name))
        if device.allow_multiple_allocations and not kept.allow_multiple_allocations:
            lost.add("allowMultipleAllocations")
        if device.taints and not kept.taints:
            lost.add("taints")
        for name, capacity in device.capacity.items():
            stored_capacity = kept.capacity.get(name)
            if capacity.request_policy and (
                stored_capacity is None or stored_capacity.request_policy is None
            ):
                lost.add("requestPolicy")
    return frozenset(lost)


def _devices(config: NodeConfig, machine: ProbedMachine, most_pods: int) -> Iterator[SliceDevice]:
    whole = {gpu.index: gpu for gpu in config.inventory.gpus}
    for probed in machine.gpus:
        gpu = whole.get(probed.index)
        if gpu is not None:
            shared = config.mode.shared
            yield SliceDevice(
                name=device_name(gpu.index),
                attributes=_attributes(probed, machine, gpu.uuid, shared=shared),
                capacity=_shared_capacity(config.mode, gpu, most_pods)
                if shared
                else _memory(gpu.mib),
                taints=_taints(healthy=gpu.healthy),
                allow_multiple_allocations=shared or None,
            )
        for instance in config.instances:
            if instance.index == probed.index:
                profile = DeviceAttribute(string_value=instance.resource.removeprefix(MIG_PREFIX))
                yield SliceDevice(
                    name=instance_name(instance),
                    attributes={
                        **_attributes(probed, machine, instance.uuid, shared=False),
                        "profile": profile,
                    },
                    capacity=_memory(instance.mib),
                    taints=_taints(healthy=instance.healthy),
                )


def _attributes(
    gpu: ProbedGpu, machine: ProbedMachine, uuid: str, *, shared: bool
) -> dict[str, DeviceAttribute]:
    texts = {"uuid": uuid, "model": gpu.model, "architecture": gpu.architecture}
    # nvidia-smi's bus ID is 00000000:3B:00.0, and the kernel's is 0000:3b:00.0.
    domain, _, rest = gpu.bus_id.lower().partition(":")
    texts[BUS_ID] = f"{domain[-4:]}:{rest}" if rest else ""
    found = {
        name: DeviceAttribute(string_value=text[:_LONGEST_STRING])
        for name, text in texts.items()
        if text
    }
    cuda = ".".join(map(str, machine.cuda))
    for name, text in (("driverVersion", machine.driver), ("cudaVersion", cuda)):
        if version := _version(text):
            found[name] = DeviceAttribute(version_value=version)
    numbers = {"index": gpu.index, "numaNode": gpu.numa}
    if gpu.mig is not Mig.ON:  # instances have no NVLink
        numbers["nvlinkGroup"] = gpu.nvlink_group
    found |= {
        name: DeviceAttribute(int_value=number) for name, number in numbers.items() if number >= 0
    }
    return found | {"shared": DeviceAttribute(bool_value=shared)}


def _shared_capacity(mode: Mode, gpu: Gpu, most_pods: int) -> dict[str, DeviceCapacity]:
    """Return a shared GPU's capacity. By default, a claim gets all of it, and counts as one pod."""
    size, whole = binary_quantity(gpu.mib), str(CORE_PERCENT)
    memory = CapacityPolicy(
        default=size, valid_range=CapacityRange(min="1Mi", max=size, step="1Mi")
    )
    found = {MEMORY: DeviceCapacity(value=size, request_policy=memory)}
    if mode is Mode.CORE_MEM:
        steps = CapacityRange(min=str(CORE_STEP), max=whole, step=str(CORE_STEP))
        found[CORES] = DeviceCapacity(
            value=whole, request_policy=CapacityPolicy(default=whole, valid_range=steps)
        )
    found[PODS] = DeviceCapacity(
        value=str(most_pods), request_policy=CapacityPolicy(default="1", valid_values=("1",))
    )
    return found


def _memory(mib: int) -> dict[str, DeviceCapacity]:
    return {MEMORY: DeviceCapacity(value=binary_quantity(mib))}


def _taints(*, healthy: bool) -> tuple[DeviceTaint, ...]:
    return () if healthy else (DeviceTaint(key=UNHEALTHY_TAINT, effect="NoSchedule"),)


def binary_quantity(mib: int) -> str:
    """Format a size as the API server does.

    >>> binary_quantity(81920)
    '80Gi'
    """
    for suffix in ("Mi", "Gi", "Ti"):
        if mib % 1024 or suffix == "Ti":
            break
        mib //= 1024
    return f"{mib}{suffix}"


def _version(text: str) -> str:
    """Convert a version to semver.org's three numbers, without leading zeros.

    The result is "" if all numbers would be 0.
    """
    numbers = [int(number) for number in re.findall(r"[0-9]+", text)[:3]]
    return ".".join(map(str, [*numbers, 0, 0][:3])) if any(numbers) else ""
