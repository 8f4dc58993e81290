"""Instructions are executed on the node's files, and what cannot be written is tried again."""

import shutil
from pathlib import Path

import pytest

from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.decisions.calls.allocation import DeviceAllocator
from gputile.node.agent.decisions.instructions import AdvertiseDevices, RemoveOthers, SaveCheckpoint
from gputile.node.agent.decisions.publishing.time_shares import TimeShares
from gputile.node.agent.files.records import Records
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.mps import MpsDaemons
from gputile.node.agent.shell.executor import Executor
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_stage import DeviceStage
from gputile.node.arbiter.agent_messages import Assignment
from gputile.node.gateway import link
from tests.fakes.devicetable import let_start
from tests.stateful.agentmodel import AgentsEnd
from tests.unit.node.agent.decisions.test_given_twice import known, listed, node
from tests.unit.node.agent.files.test_records import records_in

pytestmark = pytest.mark.requirement("B1", "G1")


class Executing:
    """An executor on a directory, and what it tells the kubelet."""

    def __init__(self, directory: Path) -> None:
        self.told: list[object] = []
        self.records: Records = records_in(directory)
        self.state: AllocationState = node(Mode.CGPU, known("a", GPU_MEMORY, 2))
        self.executor = Executor(
            self.state,
            self.records,
            KubeletLink(AgentsEnd(self.told.append)),
            MpsDaemons(directory / "mps", "none"),
            ArbiterProcess(self.records.store, lambda _: TimeShares(Assignment(), {}, {})),
            None,
        )
        ids = ("g0-00000", "g0-00001")
        DeviceAllocator(self.state, listed(GPU_MEMORY, a=()), 0.0, 1).allocate(GPU_MEMORY, ids)


def unsaved(state: AllocationState) -> bool:
    return state.advertised.unsaved


def test_a_full_disk_keeps_no_news_from_the_kubelet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    here = Executing(tmp_path)
    shutil.rmtree(tmp_path / "state")
    here.executor.execute([SaveCheckpoint(), AdvertiseDevices({GPU_MEMORY: (("g0-00000", True),)})])
    assert "is tried again" in caplog.text
    assert unsaved(here.state)
    assert [type(each) for each in here.told] == [link.Advertise]
    (tmp_path / "state").mkdir()
    here.executor.execute([SaveCheckpoint()])
    assert not unsaved(here.state)
    assert [pod.uid for pod in records_in(tmp_path).saved.pods] == ["uid-a"]


def test_a_container_whose_directory_is_removed_cannot_run(tmp_path: Path) -> None:
    here = Executing(tmp_path)
    let_start(here.state.device_table, "uid-gone-main")
    assert here.state.device_table.stage("uid-gone-main") is DeviceStage.ORPHANED
    here.records.store.prepare("uid-a-main")
    here.records.store.prepare("uid-gone-main")
    here.executor.execute([RemoveOthers({"uid-a-main"}, set())])
    assert [path.name for path in here.records.store.allocations.iterdir()] == ["uid-a-main"]
    assert here.state.device_table.stage("uid-gone-main") is DeviceStage.RELEASED
    assert here.state.device_table.stage("uid-a-main") is DeviceStage.ANSWERED
