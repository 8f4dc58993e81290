"""A kubelet forgets who has which devices, and containers run on with them."""

from pathlib import Path

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, WHOLE_GPU, Mode
from gputile.core.devices.allocation import Chosen, allocate, binding_annotations
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import Phase, parse_request
from gputile.node.agent.allocation import DeviceAllocator
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.answers import Limits
from gputile.node.agent.device_ids import ListedPod, encode
from gputile.node.agent.device_table import DeviceTable
from gputile.node.agent.differences import Release, differences
from gputile.node.agent.files.allocation_files import BOOT_FILE, NodeFiles
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.known_pods import KnownPod, known_pod
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.ownership import release, settle
from gputile.node.agent.pod_devices import ContainerDevices, DeviceOwner, PodDevices
from gputile.node.agent.rules import AllocationConflict
from gputile.node.gateway.link import NodeLock
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container

pytestmark = pytest.mark.requirement("B1", "M4")

GPUS = tuple(Gpu(index, f"GPU-{index}", 8192) for index in range(2))
SIDE, MAIN, OTHER = ("g0-00000", "g0-00001"), ("g0-00002", "g0-00003"), ("g0-00004", "g0-00005")


def booked(pod: Pod, gpu: int) -> KnownPod:
    request = parse_request(pod, 1024)
    assert request is not None
    chosen = (Chosen(GPUS[gpu], 8),)
    meta = msgspec.structs.replace(
        pod.metadata,
        uid=f"uid-{pod.metadata.name}",
        annotations=binding_annotations(allocate(request, chosen, "cgpu", 1), chosen, pod),
    )
    return known_pod(msgspec.structs.replace(pod, metadata=meta), Configuration())


def admission(mode: Mode, pods: list[KnownPod], held: list[PodDevices], *started: str) -> AllocationState:
    setup = NodeConfig(Inventory(GPUS, mode=mode.value, unit_mib=1024), EffectiveMode(mode, 1024))
    found = AllocationState(Configuration(), setup, DeviceTable(held, started))
    found.pods.update({pod.key: pod for pod in pods})
    return found


def two_of_one_size() -> KnownPod:
    side = msgspec.structs.replace(container("side", mem=2), restart_policy="Always")
    return booked(simple_pod("a", container(mem=2), init=(side,)), 0)


def holding(pod: KnownPod, *devices: ContainerDevices, mode: Mode = Mode.CGPU) -> PodDevices:
    name = pod.pod.metadata.name
    return PodDevices(pod.uid, "default", name, 1024, mode.value, "default", 1, devices, {0: "GPU-0"})


def devices_of(
    name: str, ids: tuple[str, ...], phase: Phase = Phase.APP, resource: str = GPU_MEMORY
) -> ContainerDevices:
    return ContainerDevices(name, phase, resource, ids, f"uid-a-{name}")


def bare(*containers: str) -> dict[str, ListedPod]:
    return {"default/a": ListedPod("default", "a", {name: {} for name in containers})}


@pytest.mark.parametrize("written", [True, False, None])
def test_a_call_that_an_agent_died_of_is_answered_for_the_same_container(*, written: bool | None) -> None:
    """The next container may ask for the very IDs of the init container before it, but not before those are written."""
    pod = booked(simple_pod("a", container(mem=2), init=(container("init", mem=2),)), 0)
    node, listing = admission(Mode.CGPU, [pod], [holding(pod, devices_of("init", SIDE, Phase.INIT))]), bare("main")
    owners = None if written is None else frozenset({DeviceOwner("uid-a", "init")} if written else ())
    grant, _ = DeviceAllocator(node, listing, 0.0, 2, owners).allocate(GPU_MEMORY, SIDE)
    assert grant.directory == ("uid-a-init" if written is False else "uid-a-main")


def test_a_pod_that_an_old_list_lacks_keeps_its_devices_while_the_kubelet_lists_nothing_either() -> None:
    pod = booked(simple_pod("a", container(mem=2)), 0)
    node = admission(Mode.CGPU, [], [holding(pod, devices_of("main", SIDE))], "uid-a-main")
    node.heard({}, 2.0, settled=False)
    assert differences(node, {}, 3, synced=True) == []
    node.pods.gone[pod.uid] = None
    assert differences(node, {}, 3, synced=True) == [Release(pod.uid)]
    node.pods.gone.clear()
    node.heard({}, 2.0, settled=True)
    assert differences(node, {}, 3, synced=True) == [Release(pod.uid)]


def test_ids_that_are_held_are_refused_to_another_pod_and_not_laid_to_their_holder() -> None:
    """The kubelet may choose without asking for a preference."""
    pod, other = two_of_one_size(), booked(simple_pod("b", container(mem=2)), 0)
    held = holding(pod, devices_of("side", SIDE, Phase.SIDECAR), devices_of("main", MAIN))
    node = admission(Mode.CGPU, [pod, other], [held], "uid-a-side", "uid-a-main")
    listing = {**bare("side", "main"), "default/b": ListedPod("default", "b", {"main": {}})}
    with pytest.raises(AllocationConflict, match="held by pod default/a already"):
        DeviceAllocator(node, listing, 0.0, 2).allocate(GPU_MEMORY, MAIN)
    assert node.device_table.get(pod.uid) == held


def test_a_container_that_is_started_again_gets_its_own_gpu_again() -> None:
    """After a reboot, say: nothing runs, and the kubelet asks for all of them anew."""
    pod = booked(simple_pod("a", container(asks={WHOLE_GPU: 1})), 1)
    own = devices_of("main", (encode(1, 0),), resource=WHOLE_GPU)
    held = msgspec.structs.replace(holding(pod, own, mode=Mode.EXCLUSIVE), gpus={1: "GPU-1"})
    node = admission(Mode.EXCLUSIVE, [pod], [held], "uid-a-main")
    ids = DeviceAllocator(node, bare("main"), 0.0).preferred(WHOLE_GPU, [encode(0, 0), encode(1, 0)], (), 1)
    assert ids == (encode(1, 0),)


def test_both_resources_of_a_container_that_is_started_again_come_from_its_gpu() -> None:
    """The list shows the first one's IDs already when the second one is asked for."""
    pod = booked(simple_pod("a", container(mem=2, core=10)), 1)
    mem, core = (encode(1, 0), encode(1, 1)), tuple(encode(1, slot) for slot in range(10))
    own = [
        ContainerDevices("main", Phase.APP, GPU_MEMORY, mem, "uid-a-main"),
        ContainerDevices("main", Phase.APP, GPU_CORE, core, "uid-a-main"),
    ]
    held = msgspec.structs.replace(holding(pod, *own, mode=Mode.CORE_MEM), gpus={1: "GPU-1"})
    node = admission(Mode.CORE_MEM, [pod], [held], "uid-a-main")
    shown: dict[str, frozenset[str]] = {}
    for resource, size, slots in ((GPU_MEMORY, 2, 8), (GPU_CORE, 10, 100)):
        listing = {"default/a": ListedPod("default", "a", {"main": dict(shown)})}
        settle(node, listing, 2)
        offered = [encode(index, slot) for index in (0, 1) for slot in range(slots)]
        ids = DeviceAllocator(node, listing, 0.0).preferred(resource, offered, (), size)
        grant, _ = DeviceAllocator(node, listing, 0.0, 2).allocate(resource, ids)
        assert grant.environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
        assert grant.directory == "uid-a-main"
        shown[resource] = frozenset(ids)


def test_what_was_let_start_before_the_machine_did_does_not_run(tmp_path: Path) -> None:
    claim = NodeLock(tmp_path / "owner", "me")
    claim.take()
    store = NodeFiles(tmp_path, claim, UsageFiles(tmp_path / "usage"))
    limits = Limits("default", "a", "uid-a", "main", "share", 1024, ())
    assert not store.started()
    store.write_limits("uid-a-main", limits)
    assert store.started() == {"uid-a-main"}
    boot = store.allocations / "uid-a-main" / BOOT_FILE
    boot.write_text("another boot")
    assert not store.started()


def test_a_pod_that_the_api_server_has_not_told_yet_keeps_what_it_runs_with() -> None:
    """Kubelet and agent start anew while the API server is away: nobody says that the pod is gone."""
    pod = two_of_one_size()
    state = admission(Mode.CGPU, [], [holding(pod, devices_of("main", MAIN))], "uid-a-main")
    settle(state, {pod.key: ListedPod("default", "a", {"side": {}, "main": {}})}, 1)
    assert state.device_table.get(pod.uid) is not None
    release(state, MAIN, GPU_MEMORY, {pod.key: ListedPod("default", "a", {"main": {}})}, "uid-q")
    assert state.device_table.get(pod.uid) is not None
    release(state, MAIN, GPU_MEMORY, {}, "uid-q")
    assert state.device_table.get(pod.uid) is None, "the kubelet does not list it either"


def test_a_pod_that_is_merely_not_known_keeps_what_it_runs_with_while_the_kubelet_lists_nothing() -> None:
    pod = booked(simple_pod("a", container(mem=2)), 0)
    answered = admission(Mode.CGPU, [], [holding(pod, devices_of("main", MAIN))])
    release(answered, MAIN, GPU_MEMORY, None, "uid-q")
    assert answered.device_table.get(pod.uid) is None, "the kubelet may not have written it down"
    started = admission(Mode.CGPU, [], [holding(pod, devices_of("main", MAIN))], "uid-a-main")
    release(started, MAIN, GPU_MEMORY, None, "uid-q")
    assert started.device_table.get(pod.uid) is not None
    with pytest.raises(AllocationConflict):
        DeviceAllocator(started, None, 0.0, 2).allocate(GPU_MEMORY, MAIN)
    started.pods.gone[pod.uid] = None
    release(started, MAIN, GPU_MEMORY, None, "uid-q")
    assert started.device_table.get(pod.uid) is None


def test_one_whose_name_another_pod_has_by_now_is_gone() -> None:
    pod = booked(simple_pod("a", container(mem=2)), 0)
    held = msgspec.structs.replace(holding(pod, devices_of("main", MAIN)), uid="uid-before")
    state = admission(Mode.CGPU, [pod], [held], "uid-a-main")
    release(state, MAIN, GPU_MEMORY, None, "uid-q")
    assert state.device_table.get("uid-before") is None
