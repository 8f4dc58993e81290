"""Who gets which devices, and who may start with them: by what the kubelet has written down (B1, G1, M4)."""

from pathlib import Path

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration, Trust
from gputile.api.core import Container, PodStatus
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, WHOLE_GPU, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.node.agent.allocation import AllocateAnswer, allocate, preferred
from gputile.node.agent.allocation_state import UNKNOWN_CALLER, AllocationState, Caller
from gputile.node.agent.callers import callers, unclear
from gputile.node.agent.container_start import NotYet, prestart
from gputile.node.agent.device_table import KubeletEntry, Limits, ListedPod, part_id
from gputile.node.agent.files.allocation_files import NodeFiles, Records
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.holdings import UNKNOWN_FOR_NS, derive, forget_unwritten, record_start
from gputile.node.agent.known_pods import KnownPod, known_pod, remove_pod
from gputile.node.agent.node_config import EffectiveMode, MigDevice, NodeConfig, Sharing
from gputile.node.agent.rules import AllocationConflict
from gputile.node.gateway.link import NodeLock
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container

pytestmark = pytest.mark.requirement("B1", "G1", "M4")

MIG = "nvidia.com/mig-7g.40gb"
GPUS = tuple(Gpu(index, f"GPU-{index}", 8192) for index in range(2))
INSTANCES = tuple(MigDevice(index, f"MIG-{index}", MIG, 40192) for index in range(2))
TWO, NEXT = ("GPU-0::0", "GPU-0::1"), ("GPU-0::2", "GPU-0::3")
LATER = 2 * UNKNOWN_FOR_NS

Shown = dict[str, dict[str, dict[str, tuple[str, ...]]]]
"""What the kubelet lists: by pod, container and resource."""


def known(
    name: str, *containers: Container, init: tuple[Container, ...] = (), phase: str = "", uid: str = ""
) -> KnownPod:
    pod = simple_pod(name, *containers, init=init)
    meta = msgspec.structs.replace(pod.metadata, uid=uid or f"uid-{name}")
    return known_pod(msgspec.structs.replace(pod, metadata=meta, status=PodStatus(phase=phase)), Configuration())


class Here:
    """A node between an agent and a kubelet that lists, and writes down what it has given."""

    def __init__(self, mode: Mode, *pods: KnownPod) -> None:
        config = NodeConfig(Inventory(GPUS, mode=mode.value, unit_mib=1024), EffectiveMode(mode, 1024), INSTANCES)
        self.state = AllocationState(Configuration(), config)
        self.state.saved_mode = config.effective_mode
        self.records: Records | None = None
        self.now = 0
        self.know(*pods)

    def know(self, *pods: KnownPod) -> None:
        self.state.pods.update({pod.key: pod for pod in pods})
        self.state.pods.listed = True
        derive(self.state, self.now)

    def is_upgraded(self, directory: Path) -> None:
        """The kubelet writes its checkpoint in another format from now on."""
        (directory / "kubelet_internal_checkpoint").write_bytes(b"another format")
        lock = NodeLock(directory / "owner", "this agent")
        lock.acquire()
        self.records = Records(NodeFiles(directory / "state", lock, UsageFiles(directory / "usage")), directory)
        self.records.read(self.state, self.now)

    def lists(self, pods: Shown, *, settled: bool = True) -> None:
        """The kubelet lists pods with their containers, each with what it has of each resource."""
        listing = {
            f"default/{name}": ListedPod(
                "default",
                name,
                {c: {r: frozenset(ids) for r, ids in given.items()} for c, given in containers.items()},
            )
            for name, containers in pods.items()
        }
        self.state.record_listing(listing, 1.0, settled=settled)
        if self.records is not None:
            self.records.read(self.state, self.now)
        derive(self.state, self.now)

    def answers(self, resource: str, ids: tuple[str, ...]) -> AllocateAnswer:
        self.now += 1
        forget_unwritten(self.state, resource)
        found = callers(self.state, self.state.listing, resource, len(ids))
        return allocate(self.state, next(iter(found), UNKNOWN_CALLER), resource, ids, self.now)

    def writes(self, uid: str, name: str, resource: str, ids: tuple[str, ...], answer: AllocateAnswer) -> None:
        entry = KubeletEntry(uid, name, resource, frozenset(ids), answer.directory, ())
        self.state.written = (*(self.state.written or ()), entry)
        derive(self.state, self.now)

    def gives(self, pod: KnownPod, name: str, ids: tuple[str, ...], resource: str = GPU_MEMORY) -> str:
        """The kubelet admits a container: return the allocation directory that it mounts."""
        shown: Shown = {pod.pod.metadata.name: {each.name: {} for each in pod.pod.spec.containers}}
        self.lists(shown)
        answer = self.answers(resource, ids)
        self.writes(pod.kubelet_uid, name, resource, ids, answer)
        return answer.directory

    def starts(self, resource: str, ids: tuple[str, ...]) -> list[tuple[str, Limits]]:
        found = prestart(self.state, resource, ids, self.now)
        for directory, limits in found:
            record_start(self.state, directory, limits, self.now)
        return found

    def held(self) -> dict[str, set[str]]:
        return {each.uid: {i for part in each.devices for i in part.ids} for each in self.state.device_table}


def test_what_the_known_pod_does_not_ask_for_may_be_for_the_next_of_its_name() -> None:
    here = Here(Mode.CGPU, known("a", container(mem=2)), known("plain", container()))
    here.lists({"a": {"main": {}}, "plain": {"main": {}}, "new": {"main": {}}})
    assert unclear(here.state, here.state.listing, GPU_MEMORY, 7) == [
        "default/new",
        "default/a",
        "default/plain",
    ]


def test_what_was_expected_counts_for_nothing_once_the_kubelet_or_the_pod_is_another() -> None:
    pod = known("a", container(mem=2))
    here = Here(Mode.SHARE, pod)
    here.lists({"a": {"main": {}}})
    here.state.expect(GPU_MEMORY, TWO, Caller(pod.key, "main", pod))
    assert here.state.expected_caller(GPU_MEMORY, TWO, 1.0) is not None
    assert here.state.expected_caller(GPU_MEMORY, TWO, 2.0) is None
    for other in (known("a", container(mem=2), uid="another"), known("a", container(mem=2), phase="Succeeded")):
        here.know(other)
        assert here.state.expected_caller(GPU_MEMORY, TWO, 1.0) is None


@pytest.mark.parametrize(
    ("resource", "free"),
    [(WHOLE_GPU, ("GPU-0", "GPU-1")), (MIG, ("MIG-0", "MIG-1"))],
    ids=["whole GPU", "MIG instance"],
)
def test_a_gpu_that_was_given_twice_has_one_user_at_a_time(resource: str, free: tuple[str, ...]) -> None:
    """A ``List`` while the kubelet gives devices can make it give them again."""
    a, b = (known(name, container(asks={resource: 1})) for name in ("a", "b"))
    here, ids = Here(Mode.EXCLUSIVE, a, b), free[:1]
    here.gives(a, "main", ids, resource)
    here.starts(resource, ids)
    found = callers(here.state, {b.key: ListedPod("default", "b", {"main": {}})}, resource, 1)
    caller = next(iter(found), UNKNOWN_CALLER)  # of a MIG instance nobody knows who asks
    assert preferred(here.state, caller, resource, free, (), 1) == free[1:], "the kubelet offers both"
    directory = here.gives(b, "main", ids, resource)
    with pytest.raises(NotYet, match="delete one of the two pods"):
        here.starts(resource, ids)
    remove_pod(here.state.pods, a.pod)
    here.lists({"b": {"main": {resource: ids}}})
    assert [started for started, _ in here.starts(resource, ids)] == [directory]


def test_a_container_may_have_several_mig_instances() -> None:
    pod = known("a", container(asks={MIG: 2}))
    here = Here(Mode.EXCLUSIVE, pod)
    here.gives(pod, "main", ("MIG-0", "MIG-1"), MIG)
    assert here.starts(MIG, ("MIG-0", "MIG-1"))
    config = here.state.node_config
    here.state.node_config = NodeConfig(config.inventory, config.effective_mode, INSTANCES[:1])
    with pytest.raises(NotYet, match="MIG-1 cannot be found"):
        here.starts(MIG, ("MIG-0", "MIG-1"))


def test_a_gpu_has_no_more_users_than_time_slices() -> None:
    pods = [known(name, container(asks={WHOLE_GPU: 1})) for name in ("a", "b", "c")]
    here = Here(Mode.EXCLUSIVE, *pods)
    sliced = EffectiveMode(Mode.EXCLUSIVE, 1024, Sharing.TIME_SLICING, 2)
    here.state.node_config = NodeConfig(Inventory(GPUS[:1], mode="default", unit_mib=1024, replicas=2), sliced)
    for pod, ids in zip(pods, (("GPU-0::0",), ("GPU-0::1",), ("GPU-0::1",)), strict=True):
        here.gives(pod, "main", ids, WHOLE_GPU)
    here.starts(WHOLE_GPU, ("GPU-0::0",))
    with pytest.raises(NotYet, match="GPU 0 is used by pod default/a, default/b"):
        here.starts(WHOLE_GPU, ("GPU-0::1",))


def test_pods_with_the_same_ids_that_have_no_room_beside_each_other_say_so() -> None:
    a, b = (known(name, container(mem=5)) for name in ("a", "b"))
    here, ids = Here(Mode.CGPU, a, b), tuple(part_id("GPU-0", slot) for slot in range(5))
    for pod in (a, b):
        here.gives(pod, "main", ids)
    with pytest.raises(NotYet, match="to pods default/a, default/b: delete one of them"):
        here.starts(GPU_MEMORY, ids)


def test_gpus_that_nvidias_plugin_gave_away_before_gputile_came_are_taken() -> None:
    """The node was handed over with pods on it: the kubelet's checkpoint has IDs of the same form."""
    old, new = (known(name, container(asks={WHOLE_GPU: 1})) for name in ("old", "new"))
    here = Here(Mode.EXCLUSIVE, old, new)
    here.state.written = (KubeletEntry(old.uid, "main", WHOLE_GPU, frozenset({"GPU-0"}), "uid-old-main", ()),)
    here.lists({"old": {"main": {WHOLE_GPU: ("GPU-0",)}}, "new": {"main": {}}})
    caller = callers(here.state, here.state.listing, WHOLE_GPU, 1)[0]
    assert preferred(here.state, caller, WHOLE_GPU, ("GPU-0", "GPU-1"), (), 1) == ("GPU-1",)


@pytest.mark.parametrize(
    ("resource", "ids", "why"),
    [
        (GPU_MEMORY, ("GPU-1::0",), "GPU 1 is unhealthy"),
        (GPU_MEMORY, ("GPU-7::0",), "GPU-7 does not exist"),
        (GPU_MEMORY, ("what",), "GPU what does not exist"),
        (GPU_MEMORY, ("GPU-0::0", "GPU-1::0"), "GPU 1 is unhealthy"),
        (WHOLE_GPU, ("GPU-0",), "is not offered here"),
    ],
)
def test_what_can_never_be_served_is_refused_and_not_remembered(resource: str, ids: tuple[str, ...], why: str) -> None:
    here = Here(Mode.SHARE, known("a", container(mem=1)))
    sick = tuple(msgspec.structs.replace(gpu, healthy=gpu.index == 0) for gpu in GPUS)
    here.state.node_config = NodeConfig(Inventory(sick, mode="share", unit_mib=1024), EffectiveMode(Mode.SHARE, 1024))
    with pytest.raises(AllocationConflict, match=why):
        here.answers(resource, ids)
    assert here.state.records == {}
    assert here.held() == {}


APART, TOGETHER = Configuration(), Configuration(trust=Trust(by="cluster"))
GROUPED = Configuration(trust=Trust(groups={"all": ["one", "two"]}))


@pytest.mark.requirement("G5")
@pytest.mark.parametrize(("trust", "may"), [(APART, False), (TOGETHER, True), (GROUPED, True)])
def test_a_pod_joins_those_of_its_trust_group_as_it_is_now(trust: Configuration, *, may: bool) -> None:
    here = Here(Mode.SHARE)
    for namespace, ids in (("one", TWO), ("two", NEXT)):
        pod = simple_pod("a", container(mem=2), namespace=namespace)
        meta = msgspec.structs.replace(pod.metadata, uid=f"uid-{namespace}")
        here.know(known_pod(msgspec.structs.replace(pod, metadata=meta), APART))
        answer = here.answers(GPU_MEMORY, ids)
        here.writes(f"uid-{namespace}", "main", GPU_MEMORY, ids, answer)
    here.state.configure(trust)
    derive(here.state, here.now)
    here.starts(GPU_MEMORY, TWO)
    if may:
        assert here.starts(GPU_MEMORY, NEXT)
    else:
        with pytest.raises(NotYet, match="GPU 0 is used by pod one/a of another trust group"):
            here.starts(GPU_MEMORY, NEXT)


def test_responses_that_a_kubelet_lost_are_forgotten_with_it() -> None:
    here = Here(Mode.CGPU, known("a", container(mem=2)))
    here.lists({"a": {"main": {}}})
    here.answers(GPU_MEMORY, TWO)
    assert here.state.answered
    here.state.record_listing({}, 2.0, settled=False)
    assert not here.state.answered


def test_a_container_on_two_gpus_that_asks_for_one_does_not_start() -> None:
    """Nobody knew who asked for memory and compute, and the kubelet chose two GPUs."""
    here, core = Here(Mode.CORE_MEM), tuple(part_id("GPU-1", slot) for slot in range(10))
    here.state.record_listing(None, 1.0, settled=True)
    for resource, ids in ((GPU_CORE, core), (GPU_MEMORY, TWO)):
        here.writes("uid-a", "main", resource, ids, here.answers(resource, ids))
    here.know(known("a", container(mem=2, core=10)))
    with pytest.raises(NotYet, match="chose GPU 0, GPU 1; the container asks for one GPU: delete the pod"):
        here.starts(GPU_MEMORY, TWO)


def test_a_finished_pod_is_read_after_pods_that_are_not_known() -> None:
    """Kubelets before 1.34 list finished pods, and few pods are read in one call."""
    here = Here(Mode.CGPU, *(known(f"a{i}", container(mem=2), phase="Succeeded") for i in range(9)))
    here.lists({**{f"a{i}": {"main": {}} for i in range(9)}, "new": {"main": {}}})
    assert unclear(here.state, here.state.listing, GPU_MEMORY, 2)[0] == "default/new"


def test_a_running_pod_keeps_the_unit_of_its_devices() -> None:
    """A static pod has no unit of its own until the agent has written its annotations."""
    pod = known("a", container(mem=2))
    here = Here(Mode.CGPU, pod)
    here.gives(pod, "main", TWO)
    here.state.configure(Configuration(gpu_memory_unit="512MiB"))
    derive(here.state, here.now)
    assert here.state.device_table.mib("GPU-0") == 2048
    ((_, limits),) = here.starts(GPU_MEMORY, TWO)
    assert limits.gpus[0].mib == 2048


def test_a_container_does_not_start_while_its_gpu_is_not_found() -> None:
    """Otherwise nobody would check whether the GPU has room for it."""
    pod = known("a", container(mem=2))
    here = Here(Mode.SHARE, pod)
    here.gives(pod, "main", TWO)
    here.state.node_config = NodeConfig(Inventory((), mode="share", unit_mib=1024), EffectiveMode(Mode.SHARE, 1024))
    with pytest.raises(NotYet, match="GPU-0 cannot be found on this node"):
        here.starts(GPU_MEMORY, TWO)


@pytest.mark.parametrize("sharing", [Sharing.NONE, Sharing.TIME_SLICING])
def test_a_guessed_pod_does_not_start_before_the_api_server_names_it(sharing: Sharing) -> None:
    """Its amounts, and its trust group, may be another's."""
    mode, resource, ids = (
        (Mode.CGPU, GPU_MEMORY, TWO) if sharing is Sharing.NONE else (Mode.EXCLUSIVE, WHOLE_GPU, TWO[:1])
    )
    here = Here(mode, known("guessed", container(asks={resource: len(ids)})))
    config = here.state.node_config
    here.state.node_config = NodeConfig(config.inventory, EffectiveMode(mode, 1024, sharing, 2))
    here.lists({"guessed": {"main": {}}})
    here.writes("another", "main", resource, ids, here.answers(resource, ids))
    with pytest.raises(NotYet, match="not known from the API server"):
        here.starts(resource, ids)


def test_no_container_starts_in_a_mode_that_is_not_known() -> None:
    pod = known("a", container(mem=2))
    here = Here(Mode.CGPU, pod)
    here.gives(pod, "main", TWO)
    here.state.saved_mode = None
    with pytest.raises(NotYet, match="the mode of this node is not known"):
        here.starts(GPU_MEMORY, TWO)


def test_the_other_resource_of_nobody_known_comes_from_the_same_gpu() -> None:
    here, core = Here(Mode.CORE_MEM), tuple(part_id("GPU-1", slot) for slot in range(10))
    here.answers(GPU_CORE, core)
    free = [part_id(f"GPU-{index}", slot) for index in range(2) for slot in range(8)]
    assert preferred(here.state, UNKNOWN_CALLER, GPU_MEMORY, free, (), 2) == (part_id("GPU-1", 0), part_id("GPU-1", 1))


def test_devices_are_kept_until_kubelet_and_api_server_have_let_go() -> None:
    """The kubelet's checkpoint is written at admissions only."""
    pod = known("a", container(mem=2))
    here = Here(Mode.CGPU, pod)
    here.gives(pod, "main", TWO)
    here.lists({"a": {"main": {GPU_MEMORY: TWO}}})
    here.know(known("a", container(mem=2), phase="Succeeded"))
    assert here.held(), "the kubelet still lists it"
    here.lists({})
    assert here.held() == {}
    here.state.pods.clear()
    here.now = LATER
    here.lists({}, settled=False)
    assert here.held(), "a kubelet that has just started lists its pods one after the other"
    here.lists({})
    assert here.held() == {}


def test_a_kubelet_that_has_lost_its_checkpoint_has_lost_no_pod_that_it_has_not_listed() -> None:
    """It needs longer than usual to hear of its pods, for example because the API server is away."""
    pod = known("a", container(mem=2), phase="Running")
    here = Here(Mode.CGPU, pod)
    here.gives(pod, "main", TWO)
    here.starts(GPU_MEMORY, TWO)
    here.state.written, here.state.kubelet_epoch = (), 0.5  # another kubelet comes
    for names, holds in (([], True), (["a"], True), ([], False)):
        here.lists({name: {"main": {}} for name in names})
        assert bool(here.held()) is holds


def test_where_the_kubelets_checkpoint_cannot_be_read_its_list_tells_who_starts(tmp_path: Path) -> None:
    """The IDs name the directory, even if another pod was taken for the caller."""
    here, core = Here(Mode.CORE_MEM), tuple(part_id("GPU-0", slot) for slot in range(10))
    here.is_upgraded(tmp_path)
    here.know(known("a", container(mem=2, core=10)))
    here.lists({"a": {"main": {}}})
    directory = here.answers(GPU_MEMORY, TWO).directory
    here.know(known("b", container(mem=2, core=10)))
    here.lists({"b": {"main": {GPU_MEMORY: TWO}}})
    with pytest.raises(NotYet, match=r"cannot be read \(it is not JSON"):
        here.starts(GPU_MEMORY, TWO)
    here.answers(GPU_CORE, core)
    here.lists({"b": {"main": {GPU_MEMORY: TWO, GPU_CORE: core}}})
    ((started, limits),) = here.starts(GPU_MEMORY, TWO)
    assert (started, limits.pod, limits.container) == (directory, "b", "main")
    assert [(share.mib, share.percent) for share in limits.gpus] == [(2048, 10)]


def test_init_containers_wait_for_a_checkpoint_that_can_be_read(tmp_path: Path) -> None:
    """The container that takes over their IDs waits too: the kubelet does not say which of them is to start."""
    here = Here(Mode.CGPU, known("a", container(mem=2), init=(container("init", mem=2),)))
    here.is_upgraded(tmp_path)
    here.lists({"a": {"main": {}}})
    directories = {here.answers(GPU_MEMORY, TWO).directory for _ in range(2)}
    assert len(directories) == 2
    here.lists({"a": {"main": {GPU_MEMORY: TWO}}})
    with pytest.raises(NotYet, match="no init containers"):
        here.starts(GPU_MEMORY, TWO)


def test_a_listed_pod_that_was_made_anew_waits_until_it_is_known(tmp_path: Path) -> None:
    here = Here(Mode.CGPU, known("a", container(mem=1)))
    here.is_upgraded(tmp_path)
    here.answers(GPU_MEMORY, TWO)
    here.lists({"a": {"main": {GPU_MEMORY: TWO}}})
    with pytest.raises(NotYet):
        here.starts(GPU_MEMORY, TWO)
    here.know(known("a", container(mem=2), uid="later"))
    here.lists({"a": {"main": {GPU_MEMORY: TWO}}})
    assert [limits.uid for _, limits in here.starts(GPU_MEMORY, TWO)] == ["later"]
