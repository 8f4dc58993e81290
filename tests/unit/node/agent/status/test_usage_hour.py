"""What the agent remembers of the last hour, and the page reads of it."""

import os
from pathlib import Path

import pytest

from gputile.api.gpu_time import HourSample
from gputile.api.well_known import Mode
from gputile.node.agent.device_table import PodContainer
from gputile.node.agent.status.usage import ContainerUse, GpuTimes, UsageHour
from gputile.node.agent.time_shares import TimeUsed
from tests.fakes.devicetable import release
from tests.unit.node.agent.status.test_node_metrics import MIB, POD, Node, counted

pytestmark = pytest.mark.requirement("B7")


class Remembering:
    """A node with a pod, of which its agent takes samples."""

    def __init__(self, tmp_path: Path) -> None:
        self.node, self.times = Node(tmp_path, Mode.CGPU), GpuTimes()
        use = ContainerUse(self.node.usage, self.node.proc)
        self.hour = UsageHour(self.node.snapshots, self.node.monitor, self.times, use)

    def take(self, minute: int, seconds: float) -> None:
        self.node.snapshots.refresh()
        self.times.rows = (
            TimeUsed(PodContainer(POD, "default", "a", "main"), "1", seconds, 0.0),
            TimeUsed(PodContainer("of a successor", "default", "a", "main"), "1", 9.0 * seconds, 0.0),
        )
        self.hour.sample_if_due(60 * minute, 60.0 * minute)

    def samples(self) -> list[HourSample]:
        return [each for line in self.hour.of_pod(POD).lines for each in line.samples]


@pytest.fixture
def there(tmp_path: Path) -> Remembering:
    return Remembering(tmp_path)


def test_a_sample_a_minute_has_the_memory_and_the_part_of_the_minute(there: Remembering) -> None:
    file = counted(there.node.usage.path(f"{POD}-main"), 300 * MIB - 1, 500 * MIB, 0)
    try:
        there.take(1, 10)
        there.hour.sample_if_due(70, 70.0)
        there.take(2, 40)
    finally:
        os.close(file)
    assert there.samples() == [HourSample(60, 300, None), HourSample(120, 300, 50)]
    assert [(line.container, line.gpu) for line in there.hour.of_pod(POD).lines] == [("main", 1)]


def test_what_is_kept_is_an_hour_and_containers_that_start_again_have_no_part(there: Remembering) -> None:
    for minute in range(100):
        there.take(minute, 6.0 * minute)
    assert [each.at for each in there.samples()] == [60 * minute for minute in range(40, 100)]
    assert {each.percent for each in there.samples()} == {10}
    there.take(100, 1.0)
    assert there.samples()[-1].percent is None


def test_samples_end_with_their_pod(there: Remembering) -> None:
    there.take(1, 0)
    assert there.samples()
    release(there.node.state, POD)
    there.take(2, 0)
    assert there.samples() == []
    assert there.hour.of_pod('"\0').lines == []
