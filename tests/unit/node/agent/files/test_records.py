"""What stands in the place of the kubelet's checkpoint, when it is read, and what is taken from it."""

import base64
from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.core.devices.inventory import Inventory
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.answers import CONTAINER_DIRECTORY
from gputile.node.agent.device_table import DeviceTable
from gputile.node.agent.files.allocation_files import FILE_NAME, NodeFiles, Records
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from gputile.node.gateway.link import NodeLock
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from tests.fakes.oddfiles import ODD


def records_in(directory: Path) -> Records:
    claim = NodeLock(directory / "owner", "this agent")
    claim.take()
    return Records(NodeFiles(directory / "state", claim, UsageFiles(directory / "usage")), directory)


def _entry(uid: str, name: str, ids: tuple[str, ...], directory: str) -> dict[str, object]:
    """Return what the kubelet writes down of a container that it told to mount an allocation directory."""
    mount = pb.Mount(container_path=CONTAINER_DIRECTORY, host_path=f"/state/allocations/{directory}")
    answer = base64.b64encode(pb.ContainerAllocateResponse(mounts=[mount]).SerializeToString()).decode()
    devices = {"ResourceName": GPU_MEMORY, "DeviceIDs": {"-1": ids}}
    return {"PodUID": uid, "ContainerName": name, "AllocResp": answer, **devices}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_tells_nothing_and_is_said_once(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    records = records_in(tmp_path)
    state = AllocationState(Configuration(), NodeConfig(Inventory(()), EffectiveMode(Mode.CGPU, 128)), DeviceTable())
    records.read(state, 1)
    assert state.written == ()
    assert not caplog.records, "there need not be one"
    ODD[kind](tmp_path / FILE_NAME)
    for _ in range(3):
        records.read(state, 1)
        assert state.written is None
    (said,) = caplog.records
    assert "the kubelet's checkpoint is not read: " in said.getMessage()
    assert not list(state.device_table)
