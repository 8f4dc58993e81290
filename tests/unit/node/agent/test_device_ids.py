"""Tools that read the kubelet's PodResources find a pod's GPU by the device IDs, as with NVIDIA's plugin (B9)."""

import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, TOPOLOGY_GPU, WHOLE_GPU, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import Phase
from gputile.node.agent.device_lists import devices
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, PodDevices, by_gpu, in_order, part_id
from gputile.node.agent.node_config import EffectiveMode, MigDevice, NodeConfig, Sharing

UUID = "GPU-5f0b1b2c-3e3d-4b7a-9f43-0c6d3f1a2b3c"
INSTANCE = "MIG-8c4f7d3e-1b2a-5c6d-8e9f-a0b1c2d3e4f5"
PROFILE = "nvidia.com/mig-3g.40gb"


def labelled_by_dcgm_exporter(resource: str, ids: Iterable[str], configured: Iterable[str] = ()) -> dict[str, str]:
    """Return which of its GPUs dcgm-exporter labels with a pod that has ``ids``, each with its label ``vgpu``.

    As ``iterateGPUDevices``, ``toDeviceToSharingPods`` and ``getSharedGPU`` do in its
    internal/pkg/transformation/kubernetes.go. ``configured`` is NVIDIA_RESOURCE_NAMES; MIG instances are looked up in
    NVML by their UUIDs.
    """
    if resource != "nvidia.com/gpu" and resource not in configured and not resource.startswith("nvidia.com/mig-"):
        return {}
    found = {}
    for device_id in ids:
        uuid, _, replica = device_id.partition("::")
        if "/vgpu" not in device_id and (re.fullmatch("GPU-[0-9a-f-]{36}", uuid) or device_id == INSTANCE):
            found[uuid] = replica
    return found


@pytest.mark.requirement("B9")
@pytest.mark.parametrize(
    ("mode", "sharing", "resource", "gpu"),
    [
        (Mode.EXCLUSIVE, Sharing.NONE, WHOLE_GPU, UUID),
        (Mode.EXCLUSIVE, Sharing.TIME_SLICING, WHOLE_GPU, UUID),
        (Mode.EXCLUSIVE, Sharing.MIG, PROFILE, INSTANCE),
        (Mode.TOPOLOGY, Sharing.NONE, TOPOLOGY_GPU, UUID),
        (Mode.CGPU, Sharing.NONE, GPU_MEMORY, UUID),
        (Mode.CORE_MEM, Sharing.NONE, GPU_CORE, UUID),
    ],
)
def test_dcgm_exporter_finds_the_gpu_of_a_pod(mode: Mode, sharing: Sharing, resource: str, gpu: str) -> None:
    config = NodeConfig(
        Inventory((Gpu(0, UUID, 8192),)),
        EffectiveMode(mode, 1024, sharing, replicas=4),
        (MigDevice(1, INSTANCE, PROFILE, 40192),),
    )
    offered = [device_id for device_id, _ in devices(config, DeviceTable(), {}, resource)]
    assert len(offered) == len(set(offered)) > 0
    for device_id in offered:
        assert labelled_by_dcgm_exporter(resource, [device_id], [GPU_MEMORY, GPU_CORE, TOPOLOGY_GPU]).keys() == {gpu}
    assert by_gpu(offered) == {gpu: set(offered)}


@given(st.sets(st.tuples(st.sampled_from((UUID, UUID[:-1] + "d")), st.integers(0, 400_000))))
def test_ids_are_grouped_by_gpu_and_sorted_by_number(pairs: set[tuple[str, int]]) -> None:
    grouped = by_gpu(part_id(*pair) for pair in pairs)
    assert [part_id(*pair) for pair in sorted(pairs)] == [each for ids in grouped.values() for each in in_order(ids)]


def test_ids_that_two_pods_have_count_once() -> None:
    """The kubelet has given IDs again whose former pod the agent does not know as gone, as without an API server."""
    held = [
        PodDevices(
            uid, "default", uid, 1024, "cgpu", "default", 0, (ContainerDevices("c", Phase.APP, GPU_MEMORY, ids),)
        )
        for uid, ids in (("old", (f"{UUID}::0", f"{UUID}::1")), ("new", (f"{UUID}::1", f"{UUID}::2")))
    ]
    config = NodeConfig(Inventory((Gpu(0, UUID, 8192),)), EffectiveMode(Mode.CGPU, 1024))
    assert len(devices(config, DeviceTable(held), {}, GPU_MEMORY)) == 8
