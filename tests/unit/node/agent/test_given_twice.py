"""The kubelet gives IDs away that a pod has: nobody gets another's GPU, and no GPU is promised twice.

``UpdateAllocatedDevices`` in pkg/kubelet/cm/devicemanager counts what is taken anew when a pod has gone, and leaves out
what is being given at that moment: whoever lists devices meanwhile makes the kubelet offer it again.
"""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, MEMORY_UNIT_ANNOTATION, WHOLE_GPU, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.node.agent.allocation import DeviceAllocator
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.container_start import NotYet, prestart
from gputile.node.agent.device_ids import ListedPod, Listing, encode
from gputile.node.agent.device_lists import devices
from gputile.node.agent.device_table import DeviceEvent, DeviceTable
from gputile.node.agent.differences import Release, differences
from gputile.node.agent.known_pods import KnownPod, known_pod, remove_pod
from gputile.node.agent.node_config import EffectiveMode, MigDevice, NodeConfig
from gputile.node.agent.ownership import settle, sync_with_listing
from gputile.node.agent.rules import AllocationConflict, Occupied
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.fakes.devicetable import let_start, release

pytestmark = pytest.mark.requirement("B1", "M4")

MIG = "nvidia.com/mig-7g.40gb"
GPUS = tuple(Gpu(index, f"GPU-{index}", 8192) for index in range(2))
INSTANCES = tuple(MigDevice(index, 0, f"MIG-{index}", MIG, 40192) for index in range(2))
KINDS = [
    pytest.param(Mode.CGPU, GPU_MEMORY, 2, ("g0-00000", "g0-00001"), id="memory"),
    pytest.param(Mode.EXCLUSIVE, WHOLE_GPU, 1, ("g0-00000",), id="whole GPU"),
    pytest.param(Mode.EXCLUSIVE, MIG, 1, ("g0-00000",), id="MIG instance"),
]


def known(name: str, resource: str, size: int) -> KnownPod:
    pod = simple_pod(name, container(asks={resource: size}))
    meta = msgspec.structs.replace(pod.metadata, uid=f"uid-{name}")
    return known_pod(msgspec.structs.replace(pod, metadata=meta), Configuration())


def node(mode: Mode, *pods: KnownPod) -> AllocationState:
    setup = NodeConfig(Inventory(GPUS, mode=mode.value, unit_mib=1024), EffectiveMode(mode, 1024), INSTANCES)
    found = AllocationState(Configuration(), setup, DeviceTable())
    found.pods.update({pod.key: pod for pod in pods})
    return found


def listed(resource: str, **ids: tuple[str, ...]) -> Listing:
    return {
        f"default/{name}": ListedPod("default", name, {"main": {resource: frozenset(held)} if held else {}})
        for name, held in ids.items()
    }


def run_on(mode: Mode, resource: str, size: int, ids: tuple[str, ...]) -> tuple[AllocationState, Listing]:
    """Return a node on which pod a was let start with ``ids``, and the list in which pod b lacks as many."""
    here, after = node(mode, known("a", resource, size), known("b", resource, size)), listed(resource, a=ids, b=())
    answer, _ = DeviceAllocator(here, listed(resource, a=()), 0.0, 1).allocate(resource, ids)
    let_start(here.device_table, answer.directory)
    settle(here, after, 2)
    return here, after


@pytest.mark.requirement("G1")
@pytest.mark.parametrize(("mode", "resource", "size", "ids"), KINDS)
@pytest.mark.parametrize("asked", [True, False])
def test_what_the_kubelet_lists_is_given_to_no_other(
    mode: Mode, resource: str, size: int, ids: tuple[str, ...], *, asked: bool
) -> None:
    """The kubelet offers all, those of a pod that has not started yet too; where it lists nothing, the same."""
    here = node(mode, known("a", resource, size), known("b", resource, size))
    DeviceAllocator(here, listed(resource, a=()), 0.0, 1).allocate(resource, ids)
    after = listed(resource, a=ids, b=())
    settle(here, after, 2)
    offered = [device_id for device_id, _ in devices(here.node_config, here.device_table, {}, resource)]
    assert set(ids) <= set(offered)
    for _ in range(2):
        chosen = DeviceAllocator(here, after if asked else None, 3.0).preferred(resource, offered, (), size)
        assert len(chosen) == size
        assert set(ids).isdisjoint(chosen)
    for listing in (after, None):
        with pytest.raises(AllocationConflict, match="held by pod default/a already"):
            DeviceAllocator(here, listing, 100.0, 3).allocate(resource, ids)
    DeviceAllocator(here, after, 3.0, 3).allocate(resource, chosen)
    assert {devices.ids for holding in here.device_table for devices in holding.devices} == {ids, chosen}


@pytest.mark.requirement("B1")
@pytest.mark.parametrize(("mode", "resource", "size", "ids"), KINDS[1:])
def test_a_pod_is_refused_for_good_for_a_gpu_or_an_instance_that_another_runs_on(
    mode: Mode, resource: str, size: int, ids: tuple[str, ...]
) -> None:
    """The kubelet has forgotten what the other one runs with."""
    here, after = run_on(mode, resource, size, ids)
    with pytest.raises(AllocationConflict, match="held by pod default/a already"):
        DeviceAllocator(here, after, 100.0, 3).allocate(resource, ids, may_wait=True)


@pytest.mark.requirement("B1")
def test_a_pod_that_is_known_by_its_name_alone_is_not_refused_for_what_it_has_itself() -> None:
    """An agent has just started while the API server is away, and the kubelet has forgotten the GPU."""
    ids = ("g0-00000",)
    here, _ = run_on(Mode.EXCLUSIVE, WHOLE_GPU, 1, ids)
    here.pods.clear()
    _, held = DeviceAllocator(here, listed(WHOLE_GPU, a=()), 100.0, 3).allocate(WHOLE_GPU, ids, may_wait=True)
    assert (held.uid, held.key) == ("static:default/a", "default/a")
    with pytest.raises(NotYet, match="default/a too"):
        prestart(here, WHOLE_GPU, ids, listed(WHOLE_GPU, a=ids), 4)


@pytest.mark.requirement("B1")
@pytest.mark.parametrize(("mode", "resource", "size", "ids"), KINDS)
def test_two_pods_that_have_been_given_the_same(mode: Mode, resource: str, size: int, ids: tuple[str, ...]) -> None:
    """By an agent that could not know, or by a kubelet that asked nobody. GPUs and instances have one user."""
    here = node(mode, known("a", resource, size), known("b", resource, size))
    both = listed(resource, a=ids, b=ids)
    for _ in range(2):  # and it stays so
        sync_with_listing(here, both, 1)
        assert {holding.uid for holding in here.device_table} == {"uid-a", "uid-b"}
    if resource == GPU_MEMORY:
        starts = prestart(here, resource, ids, both, 2)
        assert [start.directory for start in starts] == ["uid-a-main", "uid-b-main"]
        assert here.device_table.mib(0) == 2 * size * 1024
        with pytest.raises(AllocationConflict, match="MiB left"):
            DeviceAllocator(here, listed(resource, c=()), 0.0, 2).allocate(
                resource, tuple(encode(0, slot) for slot in range(2, 8))
            )
        return
    with pytest.raises(NotYet, match="delete one of the two pods"):
        prestart(here, resource, ids, both, 2)


@pytest.mark.requirement("G1")
@pytest.mark.parametrize(("mode", "resource", "size", "ids"), KINDS)
@pytest.mark.parametrize("says", [True, False])
def test_what_a_pod_has_that_the_kubelet_does_not_show_yet_is_waited_for(
    mode: Mode, resource: str, size: int, ids: tuple[str, ...], *, says: bool
) -> None:
    """A kubelet that has just started lists its pods one after the other, or says nothing for a moment.

    Whether the first one really has them is not known then, and a refusal would be for good.
    """
    first, second = known("a", resource, size), known("b", resource, size)
    here = node(mode, first, second)
    DeviceAllocator(here, listed(resource, a=()), 0.0, 1).allocate(resource, ids)
    settle(here, listed(resource, a=ids), 1)
    (first_holding,) = here.device_table
    if says:
        let_start(here.device_table, first_holding.devices[0].directory)
    shown = listed(resource, b=()) if says else None
    here.heard(shown, 2.0, settled=False)
    if not says:
        here.heard(None, 2.0, settled=True)
        with pytest.raises(Occupied, match="held by pod default/a already"):
            DeviceAllocator(here, None, 100.0, 2).allocate(resource, ids)
        here.heard(None, 3.0, settled=False)
    with pytest.raises(Occupied, match="held by pod default/a already"):
        DeviceAllocator(here, shown, 100.0, 2).allocate(resource, ids)
    grant, _ = DeviceAllocator(here, shown, 100.0, 2).allocate(resource, ids, may_wait=True)
    for after in (listed(resource, b=ids), listed(resource, a=(), b=ids)) if says and resource != GPU_MEMORY else ():
        here.heard(after, 2.0, settled=False)
        with pytest.raises(NotYet, match="delete one of the two pods"):
            prestart(here, resource, ids, after, 3)
    remove_pod(here.pods, first.pod)
    after = listed(resource, b=ids)
    for found in differences(here, after, 3, synced=True):
        if isinstance(found, Release):
            release(here.device_table, found.uid)
    assert [start.directory for start in prestart(here, resource, ids, after, 4)] == [grant.directory]


@pytest.mark.requirement("M4")
@pytest.mark.parametrize(("mode", "resource", "size", "ids"), KINDS)
def test_who_waits_for_what_a_container_runs_with_does_not_take_it_over(
    mode: Mode, resource: str, size: int, ids: tuple[str, ...]
) -> None:
    """Not even a pod that was not known when it was answered, and whose the devices are now as the kubelet lists."""
    first, second = known("a", resource, size), known("b", resource, size)
    here = node(mode, first)
    grant, _ = DeviceAllocator(here, listed(resource, a=()), 0.0, 1).allocate(resource, ids)
    settle(here, listed(resource, a=ids), 1)
    started = grant.directory
    let_start(here.device_table, started)
    here.heard(listed(resource, b=()), 2.0, settled=False)
    grant, waiting = DeviceAllocator(here, listed(resource, b=()), 100.0, 2).allocate(resource, ids, may_wait=True)
    here.pods[second.key] = second
    for both in (listed(resource, b=ids), listed(resource, a=(), b=ids)):
        settle(here, both, 3)
        assert {holding.uid: holding.devices[0].directory for holding in here.device_table} == {
            "uid-a": started,
            "uid-b": grant.directory,
        }
    assert here.device_table.get(waiting.uid) is None
    if resource != GPU_MEMORY:
        with pytest.raises(NotYet, match="delete one of the two pods"):
            prestart(here, resource, ids, both, 4)


@pytest.mark.requirement("M4")
def test_of_two_that_have_been_given_the_same_the_running_one_is_left_alone() -> None:
    """What it counts with, and its limits, are not made anew under it; no more than the GPU has is promised."""
    ids = tuple(encode(0, slot) for slot in range(2))
    here = node(Mode.CGPU, known("a", GPU_MEMORY, 2), known("b", GPU_MEMORY, 2))
    here = AllocationState(Configuration(), here.node_config, DeviceTable(here.device_table, ["uid-a-main"]))
    here.pods.update({name.key: name for name in (known("a", GPU_MEMORY, 2), known("b", GPU_MEMORY, 2))})
    both = listed(GPU_MEMORY, a=ids, b=ids)
    assert [start.directory for start in prestart(here, GPU_MEMORY, ids, both, 1)] == ["uid-b-main"]
    most = tuple(encode(0, slot) for slot in range(5))
    here = node(Mode.CGPU, known("a", GPU_MEMORY, 5), known("b", GPU_MEMORY, 5))
    with pytest.raises(NotYet, match="3072 of 8192 MiB left, the pod would hold 5120"):
        prestart(here, GPU_MEMORY, most, listed(GPU_MEMORY, a=most, b=most), 1)


@pytest.mark.requirement("M4")
def test_who_was_only_guessed_does_not_start() -> None:
    """PodResources was silent, so the IDs went to the one known pod that asks for so many; another one has them."""
    ids = tuple(encode(0, slot) for slot in range(2))
    here = node(Mode.CGPU, known("a", GPU_MEMORY, 2))
    grant, _ = DeviceAllocator(here, None, 0.0, 1).allocate(GPU_MEMORY, ids)
    with pytest.raises(NotYet, match="the kubelet does not list its pods"):
        prestart(here, GPU_MEMORY, ids, None, 2)
    of_another = listed(GPU_MEMORY, b=ids)
    with pytest.raises(NotYet, match="for pod default/b, which is not known yet"):
        prestart(here, GPU_MEMORY, ids, of_another, 3)
    late = known("b", GPU_MEMORY, 2)
    here.pods[late.key] = late
    assert [start.limits.pod for start in prestart(here, GPU_MEMORY, ids, of_another, 4)] == ["b"]
    let_start(here.device_table, grant.directory)
    assert [start.limits.pod for start in prestart(here, GPU_MEMORY, ids, None, 5)] == ["b"], "it has been started"


@pytest.mark.requirement("M4", "U3")
def test_a_pod_that_nobody_knows_starts_when_it_is_known_each_container_with_its_own_amount() -> None:
    """The API server does not say what the pod is, and says later that its unit is another one."""
    here = node(Mode.CGPU)
    devices = {
        "one": tuple(encode(0, slot) for slot in range(2)),
        "two": tuple(encode(0, slot) for slot in range(2, 8)),
    }
    held: dict[str, tuple[str, ...]] = {}
    listing: Listing = {}
    for name, ids in devices.items():
        shown = {each: {GPU_MEMORY: frozenset(held[each])} if each in held else {} for each in devices}
        listing = {"default/a": ListedPod("default", "a", shown)}
        settle(here, listing, 1)
        grant, _ = DeviceAllocator(here, listing, 0.0, 1).allocate(GPU_MEMORY, ids)
        assert grant.environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(len(ids))
        held[name] = ids
    for ids in devices.values():
        with pytest.raises(NotYet, match="has not said yet what pod default/a asks for"):
            prestart(here, GPU_MEMORY, ids, listing, 2)
    pod = simple_pod("a", container("one", mem=2), container("two", mem=6), annotations={MEMORY_UNIT_ANNOTATION: "512"})
    meta = msgspec.structs.replace(pod.metadata, uid="uid-a")
    found = known_pod(msgspec.structs.replace(pod, metadata=meta), Configuration())
    shown = {name: {GPU_MEMORY: frozenset(ids)} for name, ids in devices.items()}
    listing = {"default/a": ListedPod("default", "a", shown)}
    here.pods[found.key] = found
    starts = [start for ids in devices.values() for start in prestart(here, GPU_MEMORY, ids, listing, 3)]
    assert [[share.mib for share in start.limits.gpus] for start in starts] == [[1024], [3072]]


@pytest.mark.requirement("B1", "M4")
def test_both_resources_of_a_container_come_from_one_gpu_or_it_does_not_start() -> None:
    """Also where nobody knows who asks; what the kubelet then chooses may be another GPU."""
    here, pod = node(Mode.CORE_MEM), simple_pod("a", container(mem=2, core=10))
    meta = msgspec.structs.replace(pod.metadata, uid="uid-a")
    core, memory = tuple(encode(1, slot) for slot in range(10)), (encode(0, 0), encode(0, 1))
    DeviceAllocator(here, None, 0.0, 1).allocate(GPU_CORE, core)
    free = [encode(index, slot) for index in range(2) for slot in range(8)]
    ids = DeviceAllocator(here, None, 1.0, 2).preferred(GPU_MEMORY, free, (), 2)
    assert ids == (encode(1, 0), encode(1, 1))
    DeviceAllocator(here, None, 1.0, 2).allocate(GPU_MEMORY, memory)
    known = known_pod(msgspec.structs.replace(pod, metadata=meta), Configuration())
    here.pods[known.key] = known
    listing = {
        "default/a": ListedPod("default", "a", {"main": {GPU_CORE: frozenset(core), GPU_MEMORY: frozenset(memory)}})
    }
    for resource, given in ((GPU_CORE, core), (GPU_MEMORY, memory)):
        with pytest.raises(NotYet, match="chose GPU 0, GPU 1; the container asks for one GPU: delete the pod"):
            prestart(here, resource, given, listing, 3)


@pytest.mark.requirement("B6", "G5")
def test_ids_of_a_sick_gpu_are_refused_and_those_beside_a_stranger_are_waited_for() -> None:
    here = node(Mode.SHARE, known("a", GPU_MEMORY, 1), known("b", GPU_MEMORY, 1))
    DeviceAllocator(here, listed(GPU_MEMORY, a=()), 0.0, 1).allocate(GPU_MEMORY, ("g0-00000",))
    (held,) = here.device_table
    here.device_table.apply(DeviceEvent.ANSWERED, msgspec.structs.replace(held, trust_group="strangers"))
    with pytest.raises(Occupied, match="GPU 0 is used by pod default/a of another trust group"):
        DeviceAllocator(here, listed(GPU_MEMORY, b=()), 100.0, 2).allocate(GPU_MEMORY, ("g0-00001",))
    sick = tuple(msgspec.structs.replace(gpu, healthy=gpu.index == 0) for gpu in GPUS)
    here.node_config = NodeConfig(Inventory(sick, mode="share", unit_mib=1024), EffectiveMode(Mode.SHARE, 1024))
    with pytest.raises(AllocationConflict, match="GPU 1 is unhealthy"):
        DeviceAllocator(here, listed(GPU_MEMORY, b=()), 200.0, 3).allocate(GPU_MEMORY, ("g1-00000",), may_wait=True)
