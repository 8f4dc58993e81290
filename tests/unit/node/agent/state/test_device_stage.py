"""The stages of a container's devices: the table that people read is the one that is followed (M4, B1)."""

import pytest

from gputile.api.well_known import GPU_MEMORY
from gputile.core.devices.request import Phase
from gputile.node.agent.state import device_stage
from gputile.node.agent.state.device_stage import DeviceEvent, DeviceStage, after
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.pod_devices import ContainerDevices, PodDevices


def table() -> dict[tuple[DeviceStage, DeviceEvent], DeviceStage]:
    """Return what the module's documentation says follows on each event in each stage."""
    lines = [line for line in (device_stage.__doc__ or "").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    (_, *events), _, *stages = rows
    return {
        (DeviceStage(name), DeviceEvent(event)): DeviceStage(name if cell == "-" else cell)
        for name, *cells in stages
        for event, cell in zip(events, cells, strict=True)
    }


def test_the_documented_table_is_followed() -> None:
    documented = table()
    assert len(documented) == len(DeviceStage) * len(DeviceEvent)
    assert documented == {(stage, event): after(stage, event) for stage in DeviceStage for event in DeviceEvent}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("started", [True, False])
def test_a_stage_says_just_what_is_kept_and_what_may_run(*, kept: bool, started: bool) -> None:
    devices = ContainerDevices("main", Phase.APP, GPU_MEMORY, ("g0-00000",), "uid-main")
    pod_devices = PodDevices("uid", "default", "a", 1024, "cgpu", "default", 0, (devices,))
    table = DeviceTable([pod_devices] if kept else [], ["uid-main"] if started else [])
    stage = table.stage("uid-main")
    assert stage is table.stage_of("uid", "main")
    assert (stage.has_devices, stage.may_run) == (kept, started)
