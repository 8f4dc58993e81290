"""What stands in the place of the kubelet's checkpoint, when it is read, and what is taken from it."""

import base64
import json
from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.core.devices.inventory import Inventory
from gputile.node.agent.advertise.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.allocate.allocation import DeviceAllocator
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.container_start import NotYet, prestart
from gputile.node.agent.allocate.device_ids import encode
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.usage_files import UsageFiles
from gputile.node.agent.checkpoint.kubelet_checkpoint import FILE_NAME
from gputile.node.agent.checkpoint.node_files import NodeFiles
from gputile.node.agent.checkpoint.records import Records
from gputile.node.gateway.node_lock import NodeLock
from tests.oddfiles import ODD
from tests.unit.node.agent.allocate.test_given_twice import known, listed, node


def records_in(directory: Path) -> Records:
    claim = NodeLock(directory / "owner", "this agent")
    return Records(NodeFiles(directory / "state", claim, UsageFiles(directory / "usage")), directory)


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_tells_nothing_and_is_said_once(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    records = records_in(tmp_path)
    state = AllocationState(Configuration(), NodeConfig(Inventory(()), EffectiveMode(Mode.CGPU, 128)), DeviceTable())
    records.recover(state)
    assert not caplog.records, "there need not be one"
    ODD[kind](tmp_path / FILE_NAME)
    for _ in range(3):
        records.recover(state)
    (said,) = caplog.records
    assert "the kubelet's checkpoint is not read: " in said.getMessage()
    assert not list(state.device_table)


@pytest.mark.requirement("M4", "B1")
@pytest.mark.parametrize("answer", [b"", None], ids=["its answer names no mounts", "its answer is not there"])
def test_a_pod_answered_before_it_was_known_has_its_devices_once(tmp_path: Path, answer: bytes | None) -> None:
    """The kubelet's checkpoint names it before the kubelet's list is looked at: it starts all the same."""
    ids = tuple(encode(0, slot) for slot in range(2))
    state, records = node(Mode.CGPU), records_in(tmp_path)
    grant, _ = DeviceAllocator(state, listed(GPU_MEMORY, a=()), 0.0, 1).allocate(GPU_MEMORY, ids)
    with pytest.raises(NotYet, match="has not said yet what pod default/a asks for"):
        prestart(state, GPU_MEMORY, ids, listed(GPU_MEMORY, a=ids), 2)
    pod = known("a", GPU_MEMORY, 2)
    state.pods[pod.key] = pod
    entry = {"PodUID": pod.uid, "ContainerName": "main", "ResourceName": GPU_MEMORY, "DeviceIDs": {"-1": ids}}
    entry |= {"AllocResp": base64.b64encode(answer).decode()} if answer is not None else {}
    (tmp_path / FILE_NAME).write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1}))
    records.recover(state)
    assert [(each.uid, len(each.devices)) for each in state.device_table] == [(pod.uid, 1)]
    assert [start.directory for start in prestart(state, GPU_MEMORY, ids, listed(GPU_MEMORY, a=ids), 3)] == [
        grant.directory
    ]
