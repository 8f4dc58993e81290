"""What the node offers: what is done for it, and in which order (M2, M7, M12)."""

from dataclasses import replace
from typing import Any

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, ObjectMeta
from gputile.api.well_known import GPU_MEMORY, INVENTORY_ANNOTATION, MODE_LABEL, WHOLE_GPU, Mode
from gputile.core.devices.inventory import Inventory, encode_inventory
from gputile.core.devices.request import Phase
from gputile.node.agent.advertise import Advertiser, empty_in, inventory_for_scheduler
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, PodDevices
from gputile.node.agent.files.allocation_files import published_before
from gputile.node.agent.node_config import EffectiveMode, NodeConfig, Sharing, closed, node_config_of
from gputile.node.nvml.gpu_health import Health
from gputile.node.nvml.gpu_monitor import Observation
from gputile.node.nvml.probe import ProbedGpu, ProbedMachine
from tests.fakes.devicetable import hold, release

pytestmark = pytest.mark.requirement("M2", "M12")

MACHINE = ProbedMachine(tuple(ProbedGpu(index, f"GPU-{index}", "T4", 8192, f"0:{index}") for index in range(2)))
SEEN = Observation(MACHINE, Health())


def state_of(mode: Mode | None) -> AllocationState:
    """Return the state of an agent that has just begun, on a node with the label of a mode; None: it was not seen."""
    config = NodeConfig(Inventory(()), EffectiveMode(Mode.EXCLUSIVE, 1024))
    state = AllocationState(Configuration(), config, DeviceTable())
    if mode is not None:
        state.node = Node(metadata=ObjectMeta(name="n", labels={MODE_LABEL: mode.value}))
    return state


class Recorder:
    """Everybody whom the agent tells what the node offers: each call with what it said."""

    def __init__(self, state: AllocationState) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.state = state
        self.sockets: tuple[str, ...] = ()
        self.full = False
        self.mps = self
        self.without_daemon: dict[str, str] = {}
        self.advertiser = Advertiser(state, self, self, self, self, self)  # type: ignore[arg-type]

    def machine(self) -> Observation:
        return SEEN

    def other_plugins(self) -> tuple[str, ...]:
        return self.sockets

    def mps_problem(self, mode: Mode) -> str | None:
        return None

    def want(self, sets: Any) -> None:
        self.calls.append(("daemons", sets))

    def advertise(self, devices: Any) -> None:
        self.calls.append(("devices", devices))

    def save(self, mode: EffectiveMode, *, again: bool) -> None:
        if self.full:
            raise OSError("No space left on device")
        self.calls.append(("checkpoint", mode.mode))

    def renewed(self, *sockets: str) -> list[tuple[str, Any]]:
        """Return what is said once it is settled what is in force."""
        self.calls, self.sockets = [], sockets
        self.advertiser.renew_now()
        return self.calls

    def allocated(self) -> list[tuple[str, Any]]:
        self.calls = []
        self.advertiser.allocated()
        return self.calls


def renewed(state: AllocationState, *sockets: str) -> list[tuple[str, Any]]:
    return Recorder(state).renewed(*sockets)


def allocated(state: AllocationState) -> list[tuple[str, Any]]:
    return Recorder(state).allocated()


def kinds(calls: list[tuple[str, Any]]) -> list[str]:
    return [kind for kind, _ in calls]


def offered(calls: list[tuple[str, Any]]) -> dict[str, int]:
    """Return how many IDs of each resource the kubelet is told of."""
    (devices,) = (said for kind, said in calls if kind == "devices")
    return {resource: len(found) for resource, found in devices.items()}


def held(name: str, unit_mib: int, *ids: str) -> PodDevices:
    devices = ContainerDevices("main", Phase.APP, GPU_MEMORY, ids, f"{name}-main")
    return PodDevices(name, "default", name, unit_mib, "mps", "default", 0, (devices,))


def test_daemons_run_before_the_kubelet_knows_devices() -> None:
    state = state_of(Mode.MPS)
    hold(state, held("a", 1024, "GPU-0::0", "GPU-1::0"))
    done = renewed(state)
    assert kinds(done) == ["checkpoint", "daemons", "devices"]
    assert done[1] == ("daemons", {("GPU-0",), ("GPU-1",), ("GPU-0", "GPU-1")})
    assert offered(done)[GPU_MEMORY] == 16


def test_nothing_is_offered_before_the_labels_are_known_once() -> None:
    state = state_of(None)
    assert set(offered(renewed(state)).values()) == {0}
    assert state.saved_mode is None
    state.node = state_of(Mode.CGPU).node
    assert offered(renewed(state))[GPU_MEMORY] == 16
    state.node = None  # the API server does not know it for a moment
    assert renewed(state) == [("daemons", set())]
    assert state.node_config.mode is Mode.CGPU


def test_a_mode_that_cannot_be_written_down_is_not_in_force() -> None:
    """The next agent would read the former one, and give containers of both to one GPU."""
    state = state_of(Mode.SHARE)
    recorder = Recorder(state)
    recorder.renewed()
    state.node = state_of(Mode.CGPU).node
    for recorder.full, mode in ((True, Mode.SHARE), (False, Mode.CGPU)):
        recorder.advertiser.renew_now(free=False)
        assert state.decided.closing is not recorder.full, "the node is not closed in vain"
        recorder.advertiser.renew_now(free=True)
        assert state.node_config.mode is mode


@pytest.mark.parametrize(
    "mode",
    [
        EffectiveMode(Mode.EXCLUSIVE, 512, Sharing.MIG),
        EffectiveMode(Mode.EXCLUSIVE, 512, Sharing.TIME_SLICING, 4),
        EffectiveMode(Mode.CGPU, 512, claims=True, shared_mib=4096),
    ],
    ids=["mig", "slices", "claims"],
)
def test_an_agent_without_its_checkpoint_goes_on_as_the_former_one(mode: EffectiveMode) -> None:
    state = state_of(Mode.SHARE)
    config = node_config_of(MACHINE, Health(), mode, None, None)
    for inventory in (config.inventory, closed(config)):
        annotations = {INVENTORY_ANNOTATION: encode_inventory(inventory)}
        state.saved_mode, state.node = None, Node(metadata=ObjectMeta(name="n", annotations=annotations))
        assert published_before(state.node, 1) == mode
        hold(state, held("a", 512, "GPU-0::0"))
        renewed(state)
        assert state.node_config.effective_mode.mode is mode.mode
        assert state.node_config.effective_mode.sharing is mode.sharing


@pytest.mark.parametrize("rival", [False, True])
def test_a_daemon_stays_while_pods_use_its_gpu(rival: bool) -> None:
    state = state_of(Mode.MPS)
    hold(state, held("a", 1024, "GPU-0::0"))
    assert ("daemons", {("GPU-0",)} if rival else {("GPU-0",), ("GPU-1",)}) in renewed(
        state, *["nvidia.sock"][: int(rival)]
    )


@pytest.mark.requirement("G6")
@pytest.mark.parametrize("sockets", [("nvidia.sock",), ()], ids=["its socket", "its devices"])
def test_another_plugin_takes_everything_over(sockets: tuple[str, ...]) -> None:
    state = state_of(Mode.CGPU)
    if not sockets:
        state.of_other_plugins = {"volcano.sh/vgpu-number": b'["GPU-0-0","GPU-1-0"]'}
    done = renewed(state, *sockets)
    assert WHOLE_GPU not in offered(done)
    assert set(offered(done).values()) == {0}
    assert inventory_for_scheduler(state) is None


def test_who_holds_devices_changes_the_list_only_where_units_differ() -> None:
    state = state_of(Mode.CGPU)
    renewed(state)
    hold(state, held("a", 1024, "GPU-0::0"))
    assert allocated(state) == []
    hold(state, held("b", 512, "GPU-0::1"))
    assert offered(allocated(state))[GPU_MEMORY] == 16
    release(state, "b")
    assert allocated(state) == [], "the next comparison advertises again"


def test_a_node_is_empty_when_it_was_shut_for_long_enough() -> None:
    state = state_of(Mode.SHARE)
    assert empty_in(state, 10.0, 2.0) is None, "nothing is to change"
    state.decided = replace(state.decided, closing=True)
    assert empty_in(state, 10.0, 2.0) is None, "the scheduler still reads the former inventory"
    shut = {INVENTORY_ANNOTATION: encode_inventory(closed(state.node_config))}
    state.node = Node(metadata=ObjectMeta(name="n", annotations=shut))
    assert [empty_in(state, now, 2.0) for now in (10.0, 11.5, 12.0, 99.0)] == [2.0, 0.5, 0.0, 0.0]
    state.decided = replace(state.decided, closing=False)
    assert empty_in(state, 100.0, 2.0) is None
    state.decided = replace(state.decided, closing=True)
    assert empty_in(state, 101.0, 2.0) == 2.0, "it closes anew"
