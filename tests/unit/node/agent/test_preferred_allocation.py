"""To which GPU a container is steered, where the kubelet has fewer IDs to give than the ledger believes."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Container, Pod
from gputile.api.well_known import GPU_CORE, GPU_COUNT, GPU_MEMORY, MEMORY_UNIT_ANNOTATION, Mode
from gputile.core.devices.allocation import allocate, binding_annotations
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import Phase, parse_request
from gputile.node.agent.allocation import preferred
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.callers import callers
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, ListedPod, PodDevices, by_gpu, part_id
from gputile.node.agent.known_pods import known_pod
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container

UNIT = 1024
GPUS = (Gpu(0, "GPU-0", 4 * UNIT), Gpu(1, "GPU-1", 4 * UNIT))


def booked_on_the_first_gpu(init: tuple[Container, ...], *containers: Container, mode: str = "cgpu") -> Pod:
    pod = simple_pod("p", *containers, init=init, annotations={MEMORY_UNIT_ANNOTATION: str(UNIT)})
    request = parse_request(pod, UNIT)
    assert request is not None
    chosen = (GPUS[0],)
    written = pod.metadata.annotations | binding_annotations(allocate(request, chosen, mode, 1), chosen, pod)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid="u", annotations=written))


@pytest.mark.requirement("M6")
@pytest.mark.parametrize(
    ("init", "containers"),
    [
        ((container("init", mem=1),), (container("main", mem=2),)),
        ((), (container("one", mem=1), container("two", mem=1))),
    ],
    ids=["an init container, whose IDs the next one gets", "two containers"],
)
@pytest.mark.parametrize(("left", "expected"), [(1, 1), (2, 0)])
def test_the_first_container_goes_where_the_whole_pod_has_ids(
    init: tuple[Container, ...], containers: tuple[Container, ...], left: int, expected: int
) -> None:
    """A pod that was deleted by force has IDs of the booked GPU yet."""
    pod = booked_on_the_first_gpu(init, *containers)
    config = NodeConfig(Inventory(GPUS, mode="cgpu", unit_mib=UNIT), EffectiveMode(Mode.CGPU, UNIT))
    state = AllocationState(Configuration(), config, DeviceTable())
    state.pods[pod.key] = known_pod(pod, Configuration())
    listing = {pod.key: ListedPod(pod.metadata.namespace, pod.metadata.name, {})}
    available = [part_id("GPU-0", slot) for slot in range(left)] + [part_id("GPU-1", slot) for slot in range(4)]
    (wished,) = preferred(state, callers(state, listing, GPU_MEMORY, 1)[0], GPU_MEMORY, available, (), 1)
    assert wished.startswith(f"GPU-{expected}::")


@pytest.mark.requirement("M6")
@pytest.mark.parametrize(
    ("first", "size", "other", "taken", "expected"),
    [
        pytest.param(GPU_MEMORY, 1, GPU_CORE, 100, 1, id="memory first, no compute left"),
        pytest.param(GPU_CORE, 5, GPU_MEMORY, 4, 1, id="compute first, no memory left"),
        pytest.param(GPU_MEMORY, 1, GPU_CORE, 95, 0, id="memory first, just enough compute"),
        pytest.param(GPU_CORE, 5, GPU_MEMORY, 3, 0, id="compute first, just enough memory"),
    ],
)
def test_the_first_resource_goes_where_the_other_one_fits_too(
    first: str, size: int, other: str, taken: int, expected: int
) -> None:
    """Another pod came to the booked GPU unexpectedly. The kubelet asks for the two resources in any order."""
    pod = booked_on_the_first_gpu((), container("main", mem=1, core=5), mode="core_mem")
    config = NodeConfig(Inventory(GPUS, mode="core_mem", unit_mib=UNIT), EffectiveMode(Mode.CORE_MEM, UNIT))
    ids = tuple(part_id("GPU-0", slot) for slot in range(taken))
    held = (ContainerDevices("c", Phase.APP, other, ids),)
    stray = PodDevices("s", "default", "stray", UNIT, "core_mem", "default", 0, held)
    state = AllocationState(Configuration(), config, DeviceTable([stray]))
    state.pods[pod.key] = known_pod(pod, Configuration())
    listing = {
        pod.key: ListedPod(pod.metadata.namespace, pod.metadata.name, {"main": {}}),
        stray.key: ListedPod("default", "stray", {"c": {other: frozenset(ids)}}),
    }
    available = [part_id(f"GPU-{gpu}", slot) for gpu in (0, 1) for slot in range(4 if first == GPU_MEMORY else 100)]
    wished = preferred(state, callers(state, listing, first, size)[0], first, available, (), size)
    assert by_gpu(wished).keys() == {f"GPU-{expected}"}


@pytest.mark.requirement("M6")
@pytest.mark.parametrize(
    ("pod", "size", "taken", "expected"),
    [
        pytest.param(
            simple_pod("p", container(mem=2), labels={GPU_COUNT: "2"}), 2, 0, {"GPU-0", "GPU-1"}, id="two GPUs"
        ),
        pytest.param(simple_pod("p", container(mem=3), init=(container("i", mem=1),)), 1, 2, {"GPU-0"}, id="init"),
    ],
)
def test_a_booking_of_another_trust_group_does_not_fail_a_pod_that_has_none(
    pod: Pod, size: int, taken: int, expected: set[str]
) -> None:
    """IDs on fewer GPUs than the pod asks for, or on more, as its next container would get, are refused for good."""
    booked = booked_on_the_first_gpu((), container("main", mem=1), mode="share")
    stranger = msgspec.structs.replace(booked, metadata=msgspec.structs.replace(booked.metadata, namespace="other"))
    config = NodeConfig(Inventory(GPUS, mode="share", unit_mib=UNIT), EffectiveMode(Mode.SHARE, UNIT))
    held = (ContainerDevices("c", Phase.APP, GPU_MEMORY, tuple(part_id("GPU-1", slot) for slot in range(taken))),)
    friend = PodDevices("f", "default", "friend", UNIT, "share", "default", 0, held)
    state = AllocationState(Configuration(), config, DeviceTable([friend]))
    state.pods |= {each.key: known_pod(each, Configuration()) for each in (stranger, pod)}
    (caller,) = callers(state, {pod.key: ListedPod("default", "p", {})}, GPU_MEMORY, size)
    available = [part_id(f"GPU-{gpu}", slot) for gpu, first in ((0, 0), (1, taken)) for slot in range(first, 4)]
    assert by_gpu(preferred(state, caller, GPU_MEMORY, available, (), size)).keys() == expected
