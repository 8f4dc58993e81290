"""A kubelet that does not say in time what it has given asks for the next container of a pod."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Container, Pod
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.node.agent.decisions.answers.allocate import CONTAINER_DIRECTORY
from gputile.node.agent.decisions.calls.allocation import DeviceAllocator
from gputile.node.agent.decisions.ownership import sync_with_checkpoint
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.known_pods import known_pod
from gputile.node.agent.state.listing import ListedPod, Listing
from gputile.node.agent.state.node_config import EffectiveMode, NodeConfig
from tests.corebuilders import container
from tests.fakes.agentcluster import simple_pod

pytestmark = pytest.mark.requirement("B1")

IDS = ("g0-00000", "g0-00001")
CORES = tuple(f"g0-{slot:05}" for slot in range(5))


def init_and_main(name: str) -> Pod:
    return pod_named(name, container(mem=1), container("init", mem=2))


def pod_named(name: str, main: Container, init: Container) -> Pod:
    pod = simple_pod(name, main, init=(init,))
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=f"uid-{name}"))


def state_of(*pods: Pod, mode: Mode = Mode.SHARE) -> AllocationState:
    config = NodeConfig(Inventory((Gpu(0, "GPU-0", 8192),), mode=mode.value, unit_mib=1024), EffectiveMode(mode, 1024))
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


@pytest.mark.requirement("M4")
@pytest.mark.parametrize(("resource", "ids"), [(GPU_MEMORY, ("g0-00002", "g0-00003")), (GPU_CORE, CORES)])
def test_what_was_guessed_and_what_is_asked_for_later_have_no_directory_in_common(
    resource: str, ids: tuple[str, ...]
) -> None:
    """A static pod that nobody knew asked first, and was taken for the only pod known to lack as many IDs."""
    pod = pod_named("known", container(asks={GPU_MEMORY: 1}), container("init", asks={GPU_MEMORY: 2, GPU_CORE: 5}))
    state = state_of(pod, mode=Mode.CORE_MEM)
    guessed, devices = DeviceAllocator(state, None, 0.0, 1).allocate(GPU_MEMORY, IDS)
    assert [(devices.uid, each.container) for each in devices.devices] == [(pod.metadata.uid, "init")]
    answered, devices = DeviceAllocator(state, bare(pod), 20.0, 2).allocate(resource, ids)
    assert devices.uid == pod.metadata.uid
    assert answered.directory != guessed.directory


def test_a_guess_that_the_kubelet_has_written_down_is_none_any_more() -> None:
    pod = pod_named("known", container(asks={GPU_MEMORY: 1}), container("init", asks={GPU_MEMORY: 2, GPU_CORE: 5}))
    state = state_of(pod, mode=Mode.CORE_MEM)
    guessed, devices = DeviceAllocator(state, None, 0.0, 1).allocate(GPU_MEMORY, IDS)
    mounts = ((CONTAINER_DIRECTORY, f"/state/{guessed.directory}"),)
    written = [msgspec.structs.replace(each, mounts=mounts, guessed=False) for each in devices.devices]
    sync_with_checkpoint(state, [devices.only(tuple(written))])
    answered, _ = DeviceAllocator(state, bare(pod), 20.0, 2).allocate(GPU_CORE, CORES)
    assert answered.directory == guessed.directory
