"""A kubelet that does not say in time what it has given asks for the next container of a pod."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.node.agent.advertise.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.allocate.allocation import DeviceAllocator
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.known_pods import known_pod
from gputile.node.agent.reconcile.listing import ListedPod, Listing
from tests.corebuilders import container
from tests.fakes.agentcluster import simple_pod

pytestmark = pytest.mark.requirement("B1")

IDS = ("g0-00000", "g0-00001")


def init_and_main(name: str) -> Pod:
    pod = simple_pod(name, container(mem=1), init=(container("init", mem=2),))
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=f"uid-{name}"))


def state_of(*pods: Pod) -> AllocationState:
    config = NodeConfig(
        Inventory((Gpu(0, "GPU-0", 8192),), mode="share", unit_mib=1024), EffectiveMode(Mode.SHARE, 1024)
    )
    state = AllocationState(Configuration(), config, DeviceTable())
    state.pods.update({pod.key: known_pod(pod, Configuration()) for pod in pods})
    return state


def bare(pod: Pod) -> Listing:
    meta = pod.metadata
    return {pod.key: ListedPod(meta.namespace, meta.name, {"init": {}, "main": {}})}


def test_ids_of_an_init_container_tell_whose_next_container_it_is() -> None:
    """Two pods lack as many IDs; the kubelet gives an init container's only to the pod that it is of."""
    first, second = init_and_main("first"), init_and_main("second")
    state = state_of(first)
    DeviceAllocator(state, bare(first), 0.0, 1).allocate(GPU_MEMORY, IDS)
    state.pods[second.key] = known_pod(second, Configuration())
    _, devices = DeviceAllocator(state, None, 20.0, 2).allocate(GPU_MEMORY, IDS[:1])
    assert devices.uid == first.metadata.uid
    assert [(each.container, each.ids) for each in devices.devices] == [("init", IDS), ("main", IDS[:1])]


def test_what_was_answered_before_the_pod_was_known_is_the_pods() -> None:
    pod = init_and_main("late")
    state = state_of()
    _, unknown = DeviceAllocator(state, bare(pod), 0.0, 1).allocate(GPU_MEMORY, IDS)
    assert unknown.uid != pod.metadata.uid
    state.pods[pod.key] = known_pod(pod, Configuration())
    _, devices = DeviceAllocator(state, None, 20.0, 2).allocate(GPU_MEMORY, IDS[:1])
    assert devices.uid == pod.metadata.uid
    assert state.device_table.get(unknown.uid) is None
    assert {each.container for each in devices.devices} == {"init", "main"}
