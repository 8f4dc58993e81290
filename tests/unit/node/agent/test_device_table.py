"""The stages that the table keeps are what events make of them, and who holds an ID is found by index (M4, B1)."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gputile.api.well_known import GPU_CORE, GPU_MEMORY
from gputile.core.devices.request import Phase
from gputile.node.agent import device_table
from gputile.node.agent.device_ids import encode
from gputile.node.agent.device_table import DeviceEvent, DeviceStage, DeviceTable, after
from gputile.node.agent.pod_devices import ContainerDevices, PodDevices
from tests.conftest import examples
from tests.fakes.devicetable import release

UIDS, DIRECTORIES = ("a", "b", "c"), ("one", "two", "three", "four")
LEAVING = (DeviceEvent.UNLISTED, DeviceEvent.MOVED, DeviceEvent.REASSIGNED, DeviceEvent.POD_GONE)


@st.composite
def pods(draw: st.DrawFn) -> PodDevices:
    """Return what a pod is answered: a few containers, with one or two resources, each with a directory."""
    given = draw(st.dictionaries(st.tuples(st.sampled_from("xyz"), st.sampled_from((GPU_MEMORY, GPU_CORE))), placed))
    devices = tuple(ContainerDevices(name, Phase.APP, kind, ids, at) for (name, kind), (ids, at) in given.items())
    uid = draw(st.sampled_from(UIDS))
    return PodDevices(uid, "n", uid, unit_mib=1024, mode="share", trust_group="n", since_ns=0, devices=devices)


IDS = (("g0-00000",), ("g0-00001",), ("g0-00000", "g0-00001"))
placed = st.tuples(st.sampled_from(IDS), st.sampled_from(DIRECTORIES))


class DeviceStages(RuleBasedStateMachine):
    """A table, and beside it what is known without it: what each pod has, and which directories may be run with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = DeviceTable()
        self.held: dict[str, PodDevices] = {}
        self.may_run: set[str] = set()

    def directories(self) -> set[str]:
        return {devices.directory for each in self.held.values() for devices in each.devices}

    def stages(self) -> dict[str, DeviceStage]:
        return {directory: self.table.stage(directory) for directory in DIRECTORIES}

    def changes_by(self, *events: DeviceEvent) -> Callable[[], None]:
        """Return what asserts that each stage has changed by one of ``events`` after the other, or not at all."""
        before = self.stages()

        def check() -> None:
            for directory, stage in self.stages().items():
                reachable = {before[directory]}
                for event in events:
                    reachable |= {after(each, event) for each in reachable}
                assert stage in reachable

        return check

    @rule(pod=pods())
    def a_pod_is_answered(self, pod: PodDevices) -> None:
        check = self.changes_by(DeviceEvent.REASSIGNED, DeviceEvent.ANSWERED)
        self.table.apply(DeviceEvent.ANSWERED, pod)
        self.held.pop(pod.uid, None)
        self.held |= {pod.uid: pod} if pod.devices else {}
        check()

    @rule(uid=st.sampled_from(UIDS), event=st.sampled_from(LEAVING), directories=st.sets(st.sampled_from(DIRECTORIES)))
    def something_happens_to_a_pod(self, uid: str, event: DeviceEvent, directories: set[str]) -> None:
        held, check = self.held.get(uid), self.changes_by(event)
        if held is None:
            return
        self.table.apply(event, held, lambda devices: devices.directory in directories)
        if event is DeviceEvent.UNLISTED:
            leaving = directories - self.may_run
        else:
            leaving = directories & self.may_run if event is DeviceEvent.MOVED else directories
        kept = tuple(devices for devices in held.devices if devices.directory not in leaving)
        self.held[uid] = held.only(kept)
        if not kept:
            del self.held[uid]
        check()

    @rule(directory=st.sampled_from(DIRECTORIES))
    def a_container_is_let_start(self, directory: str) -> None:
        check = self.changes_by(DeviceEvent.LET_START)
        self.table.apply_by_directory(DeviceEvent.LET_START, [directory])
        self.may_run.add(directory)
        check()

    @rule(directories=st.sets(st.sampled_from(DIRECTORIES)))
    def the_directories_are_looked_at(self, directories: set[str]) -> None:
        check = self.changes_by(DeviceEvent.LET_START, DeviceEvent.CANNOT_RUN)
        self.table.see_started(directories)
        self.may_run = directories
        check()

    @rule()
    def the_agent_starts_anew(self) -> None:
        before = self.stages()
        self.table = DeviceTable(tuple(self.table), self.table.started())
        assert self.stages() == before

    @invariant()
    def devices_are_kept_at_just_the_stages_that_have_some(self) -> None:
        assert {each.uid: each for each in self.table} == self.held
        having = {directory for directory, stage in self.stages().items() if stage.has_devices}
        assert having == self.table.directories() == self.directories()

    @invariant()
    def what_was_let_start_may_run_until_it_cannot(self) -> None:
        assert {directory for directory, stage in self.stages().items() if stage.may_run} == self.may_run
        assert self.table.started() == self.may_run


TestDeviceStages = DeviceStages.TestCase
TestDeviceStages.settings = settings(
    max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@pytest.mark.requirement("B1", "M4")
def test_a_container_that_is_let_start_after_its_devices_were_released_may_run() -> None:
    """It waited for a process to leave its GPU, and its pod was taken for gone meanwhile."""
    devices = ContainerDevices("main", Phase.APP, GPU_MEMORY, ("g0-00000",), "a-main")
    pod = PodDevices("a", "n", "a", 1024, "cgpu", "n", 0, (devices,))
    table = DeviceTable([pod])
    table.apply(DeviceEvent.POD_GONE, pod)
    table.apply_by_directory(DeviceEvent.LET_START, ["a-main"])
    assert table.stage_of("a", "main") is DeviceStage.ORPHANED
    table.apply(DeviceEvent.ANSWERED, pod)
    assert table.stage_of("a", "main") is DeviceStage.STARTED


@pytest.mark.requirement("B1", "M4")
def test_a_container_keeps_its_stage_while_it_has_devices_of_one_resource() -> None:
    both = tuple(ContainerDevices("main", Phase.APP, kind, ("g0-00000",), "a-main") for kind in (GPU_MEMORY, GPU_CORE))
    table = DeviceTable([PodDevices("a", "n", "a", 1024, "core_mem", "n", 0, both)], ["a-main"])
    (pod,) = table
    table.apply(DeviceEvent.MOVED, pod, lambda devices: devices.resource == GPU_CORE)
    (pod,) = table
    assert [devices.resource for devices in pod.devices] == [GPU_MEMORY]
    assert table.stage("a-main") is DeviceStage.STARTED


@pytest.mark.requirement("B1", "M4")
def test_devices_that_were_another_pods_take_their_stage_along() -> None:
    devices = ContainerDevices("main", Phase.APP, GPU_MEMORY, ("g0-00000",), "stand-in")
    former = PodDevices("unknown:1", "", "", 1024, "cgpu", "n", 0, (devices,), identified=False)
    table = DeviceTable([former], ["stand-in"])
    table.apply(DeviceEvent.REASSIGNED, former)
    table.apply(DeviceEvent.ANSWERED, PodDevices("a", "n", "a", 1024, "cgpu", "n", 0, (devices,)))
    assert [each.uid for each in table] == ["a"]
    assert table.stage_of("a", "main") is DeviceStage.STARTED


def documented_table() -> dict[tuple[DeviceStage, DeviceEvent], DeviceStage]:
    """Return what the module's documentation says follows on each event in each stage."""
    lines = [line for line in (device_table.__doc__ or "").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    (_, *events), _, *stages = rows
    return {
        (DeviceStage(name), DeviceEvent(event)): DeviceStage(name if cell == "-" else cell)
        for name, *cells in stages
        for event, cell in zip(events, cells, strict=True)
    }


def test_the_documented_table_is_followed() -> None:
    documented = documented_table()
    assert len(documented) == len(DeviceStage) * len(DeviceEvent)
    assert documented == {(stage, event): after(stage, event) for stage in DeviceStage for event in DeviceEvent}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("started", [True, False])
def test_a_stage_says_just_what_is_kept_and_what_may_run(*, kept: bool, started: bool) -> None:
    devices = ContainerDevices("main", Phase.APP, GPU_MEMORY, ("g0-00000",), "uid-main")
    pod_devices = PodDevices("uid", "default", "a", 1024, "cgpu", "default", 0, (devices,))
    documented_table = DeviceTable([pod_devices] if kept else [], ["uid-main"] if started else [])
    stage = documented_table.stage("uid-main")
    assert stage is documented_table.stage_of("uid", "main")
    assert (stage.has_devices, stage.may_run) == (kept, started)


resources = st.sampled_from((GPU_MEMORY, GPU_CORE))
some_ids = st.lists(st.builds(encode, st.integers(0, 1), st.integers(0, 3)), max_size=4, unique=True)
few_devices = st.builds(
    ContainerDevices, st.sampled_from("ab"), st.just(Phase.APP), resources, some_ids.map(tuple), st.just("")
)
some_uids = st.sampled_from("xyz")
few_pods = st.builds(lambda uid, held: holding_of(uid, *held), some_uids, st.lists(few_devices, max_size=3))


def holding_of(uid: str, *held: ContainerDevices) -> PodDevices:
    return PodDevices(uid, "n", uid, unit_mib=1024, mode="share", trust_group="n", since_ns=0, devices=held)


@given(st.lists(st.one_of(few_pods, some_uids), max_size=12), resources, some_ids)
def test_holders_are_those_that_have_one_of_the_ids(
    deeds: list[PodDevices | str], resource: str, wanted: list[str]
) -> None:
    held = DeviceTable()
    for deed in deeds:
        if isinstance(deed, PodDevices):
            held.apply(DeviceEvent.ANSWERED, deed)
        else:
            release(held, deed)
    found = [h for h in held if any(p.resource == resource and not set(wanted).isdisjoint(p.ids) for p in h.devices)]
    assert held.holders(resource, wanted) == found
    again = DeviceTable(held)
    assert again.holders(resource, wanted) == found


def test_a_holding_that_is_replaced_holds_what_it_holds_now() -> None:
    held, few_devices = DeviceTable(), ContainerDevices("a", Phase.APP, GPU_MEMORY, ("g0-00001",), "")
    held.apply(DeviceEvent.ANSWERED, holding_of("x", few_devices))
    assert [h.uid for h in held.holders(GPU_MEMORY, ["g0-00001"])] == ["x"]
    held.apply(DeviceEvent.ANSWERED, holding_of("x"))
    assert held.holders(GPU_MEMORY, ["g0-00001"]) == []
    release(held, "x")
    release(held, "x")
    assert len(held) == 0
