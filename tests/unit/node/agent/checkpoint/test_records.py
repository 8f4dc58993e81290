"""What stands in the place of the kubelet's checkpoint, when it is read."""

from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import Mode
from gputile.core.devices.inventory import Inventory
from gputile.node.agent.advertise.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.usage_files import UsageFiles
from gputile.node.agent.checkpoint.kubelet_checkpoint import FILE_NAME
from gputile.node.agent.checkpoint.node_files import NodeFiles
from gputile.node.agent.checkpoint.records import Records
from gputile.node.gateway.node_lock import NodeLock
from tests.oddfiles import ODD


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_tells_nothing_and_is_said_once(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    claim = NodeLock(tmp_path / "owner", "this agent")
    files = NodeFiles(tmp_path / "state", claim, UsageFiles(tmp_path / "usage"))
    records = Records(files, tmp_path)
    state = AllocationState(Configuration(), NodeConfig(Inventory(()), EffectiveMode(Mode.CGPU, 128)), DeviceTable())
    records.recover(state)
    assert not caplog.records, "there need not be one"
    ODD[kind](tmp_path / FILE_NAME)
    for _ in range(3):
        records.recover(state)
    (said,) = caplog.records
    assert "the kubelet's checkpoint is not read: " in said.getMessage()
    assert not list(state.device_table)
