"""The ledger is compared with the kubelet, and the kubelet wins."""

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod, PodStatus
from gputile.api.well_known import GPU_MEMORY, GPUSHARE_ASSIGNED, GPUSHARE_INDEX, WHOLE_GPU, Mode
from gputile.core.devices.allocation import allocate, binding_annotations, decode_allocation
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import Phase, parse_request
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, ListedPod, Listing, PodDevices
from gputile.node.agent.differences import Correction, differences
from gputile.node.agent.known_pods import KnownPod, known_pod
from gputile.node.agent.node_config import EffectiveMode, NodeConfig, Sharing
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container

GPUS = tuple(Gpu(i, f"GPU-{i}", 15360) for i in range(4))
SHARE = NodeConfig(Inventory(GPUS), EffectiveMode(Mode.SHARE, 1024))
ALLOCATION = "gputile.io/allocation"


def bound(pod: Pod, *gpus: int, phase: str = "Running") -> KnownPod:
    """A pod booked on ``gpus``; without any it has no booking."""
    request, annotations = parse_request(pod, 1024), dict(pod.metadata.annotations)
    if gpus and request is not None:
        chosen = tuple(GPUS[i] for i in gpus)
        annotations |= binding_annotations(allocate(request, chosen, "share", 7), chosen, pod)
    meta = msgspec.structs.replace(pod.metadata, uid=f"uid-{pod.metadata.name}", annotations=annotations)
    return known_pod(msgspec.structs.replace(pod, metadata=meta, status=PodStatus(phase=phase)), Configuration())


def devices_of(name: str, *ids: str, resource: str = GPU_MEMORY, phase: Phase = Phase.APP) -> ContainerDevices:
    return ContainerDevices(name, phase, resource, ids, f"dir-{name}")


def held(pod: KnownPod, *devices: ContainerDevices, uid: str = "") -> PodDevices:
    return PodDevices(uid or pod.uid, "default", pod.pod.metadata.name, 1024, "share", "default", 0, devices)


def shown(*pods: tuple[str, dict[str, tuple[str, ...]]], resource: str = GPU_MEMORY) -> Listing:
    found = {}
    for name, containers in pods:
        given = {c: ({resource: frozenset(ids)} if ids else {}) for c, ids in containers.items()}
        found[f"default/{name}"] = ListedPod("default", name, given)
    return found


def compare(
    pods: list[KnownPod],
    held: list[PodDevices],
    listing: Listing,
    setup: NodeConfig = SHARE,
) -> list[Correction]:
    state = state_of(pods, DeviceTable(held), setup)
    return differences(state, listing, 9)


def state_of(pods: list[KnownPod], device_table: DeviceTable, setup: NodeConfig = SHARE) -> AllocationState:
    state = AllocationState(Configuration(), setup, device_table)
    state.pods.update({pod.key: pod for pod in pods})
    return state


def test_what_agrees_is_confirmed_once() -> None:
    pod = bound(simple_pod("a", container(mem=1)), 2)
    found = compare([pod], [held(pod, devices_of("main", "GPU-2::0"))], shown(("a", {"main": ("GPU-2::0",)})))
    assert [c.annotations for c in found] == [{GPUSHARE_ASSIGNED: "true"}]
    annotations = {**pod.pod.metadata.annotations, GPUSHARE_ASSIGNED: "true"}
    meta = msgspec.structs.replace(pod.pod.metadata, annotations=annotations)
    confirmed = known_pod(msgspec.structs.replace(pod.pod, metadata=meta), Configuration())
    assert (
        compare([confirmed], [held(pod, devices_of("main", "GPU-2::0"))], shown(("a", {"main": ("GPU-2::0",)}))) == []
    )


def test_containers_on_different_gpus_add_up_on_each() -> None:
    pod = bound(simple_pod("a", container("x", mem=2), container("y", mem=3)), 0)
    holding = held(pod, devices_of("x", "GPU-0::0", "GPU-0::1"), devices_of("y", "GPU-3::0", "GPU-3::1", "GPU-3::2"))
    listing = shown(("a", {"x": ("GPU-0::0", "GPU-0::1"), "y": ("GPU-3::0", "GPU-3::1", "GPU-3::2")}))
    (found,) = compare([pod], [holding], listing)
    truth = decode_allocation(found.annotations[ALLOCATION] or "")
    assert [(share.index, share.mib) for share in truth.gpus] == [(0, 2048), (3, 3072)]
    assert found.annotations[GPUSHARE_INDEX] is None  # those tools know one GPU a pod


def test_several_time_slices_of_a_gpu_are_booked_as_often() -> None:
    config = NodeConfig(Inventory(GPUS, replicas=4), EffectiveMode(Mode.EXCLUSIVE, 1024, Sharing.TIME_SLICING, 4))
    pod = bound(simple_pod("a", *(container(name, asks={WHOLE_GPU: 1}) for name in "xyz")), 0, 1, 2)
    ids: dict[str, tuple[str, ...]] = {"x": ("GPU-0::0",), "y": ("GPU-0::1",), "z": ("GPU-3::0",)}
    holding = held(pod, *(devices_of(name, *each, resource=WHOLE_GPU) for name, each in ids.items()))
    (found,) = compare([pod], [holding], shown(("a", ids), resource=WHOLE_GPU), config)
    assert [share.index for share in decode_allocation(found.annotations[ALLOCATION] or "").gpus] == [0, 0, 3]


def test_a_pod_in_the_middle_of_its_admission_is_left_alone() -> None:
    pod = bound(simple_pod("a", container("x", mem=1), container("y", mem=1)), 2, phase="Pending")
    assert compare([pod], [held(pod, devices_of("x", "GPU-1::0"))], shown(("a", {"x": ("GPU-1::0",), "y": ()}))) == []


def test_a_pod_that_runs_without_its_devices_is_complained_of() -> None:
    pod = bound(simple_pod("a", container(mem=1)), 2)
    (found,) = compare([pod], [], shown(("a", {"main": ()})))
    assert not found.annotations
    assert "delete the pod" in found.message
