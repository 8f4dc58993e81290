"""What is known of a machine while its driver and its GPUs come and go."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputile.core.devices.inventory import Inventory, check_inventory
from gputile.node.nvml.gpu_health import FIRST_QUIET_S
from gputile.node.nvml.gpu_monitor import (
    EXAMINE_EVERY_S,
    FIRST_RETRY_S,
    LONGEST_RETRY_S,
    NO_INVENTORY,
    READ_EVERY_S,
    GpuMonitor,
)
from gputile.node.nvml.nvml_probe import NvmlSession
from gputile.node.nvml.probe import Mig, inventory_of
from tests.fakes import nvml as fake

from .conftest import Present


class Clock:
    """A clock that goes on by what the test says; the waits themselves take next to nothing."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Watched:
    """A monitor on a machine, stepped through time."""

    def __init__(self, machine: fake.FakeMachine, known: Inventory = NO_INVENTORY) -> None:
        self.machine = machine
        self.clock = Clock()
        self.opened = 0
        self.monitor = GpuMonitor(self._open, known, clock=self.clock)

    def _open(self) -> NvmlSession:
        self.opened += 1
        return NvmlSession()

    def look(self, after_s: float = 0.0) -> bool:
        self.clock.now_s += after_s
        return self.monitor.step(0.001)

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.look(1.0)

    @property
    def down(self) -> str:
        problem = self.monitor.seen.machine.down
        return "" if problem is None else problem.reason

    @property
    def indices(self) -> dict[str, int]:
        return {gpu.uuid: gpu.index for gpu in self.monitor.seen.machine.gpus}

    @property
    def unhealthy(self) -> set[int]:
        return {self.indices[uuid] for uuid in self.monitor.seen.health.reasons if uuid in self.indices}

    def published(self) -> Inventory:
        return check_inventory(inventory_of(self.monitor.seen.machine, self.monitor.seen.health))


Watch = Callable[[str], Watched]
Elsewhere = Callable[[str, dict[str, str]], str]


@pytest.fixture
def watched(present: Present) -> Iterator[Watch]:
    made: list[Watched] = []

    def watch(name: str) -> Watched:
        made.append(Watched(present(name)))
        return made[-1]

    yield watch
    for one in made:
        one.monitor.close()


def test_a_critical_xid_takes_the_gpu_away_until_it_was_quiet(watched: Watch) -> None:
    w = watched("t4")
    w.look()
    w.machine.xid(2, 48)
    assert w.look()
    assert w.unhealthy == {2}
    assert w.monitor.seen.health.reasons == {w.machine.gpus[2].uuid: "XID 48"}
    w.pass_time(FIRST_QUIET_S - 2)
    assert w.unhealthy == {2}
    w.pass_time(2 + EXAMINE_EVERY_S)
    assert w.unhealthy == set()


def test_a_lost_gpu_leaves_and_comes_back_by_a_new_session(watched: Watch) -> None:
    w = watched("t4")
    w.look()
    w.machine.lose(1)
    w.look()
    assert w.unhealthy == {1}
    w.pass_time(30)
    assert w.opened > 1
    w.machine.recover(1)
    w.pass_time(LONGEST_RETRY_S + FIRST_QUIET_S + EXAMINE_EVERY_S)
    assert w.unhealthy == set()
    opened = w.opened
    w.pass_time(100)
    assert w.opened == opened


def test_a_gpu_that_vanished_keeps_its_place(watched: Watch) -> None:
    w = watched("v100")
    w.look()
    before, bandwidth = w.indices, w.monitor.seen.machine.bandwidth
    gone = w.machine.take_out(3)
    w.pass_time(READ_EVERY_S + 1)
    assert w.indices == before
    assert w.unhealthy == {3}
    assert w.monitor.seen.machine.bandwidth == bandwidth
    assert [gpu.healthy for gpu in w.published().gpus].count(False) == 1
    w.machine.put_back(3, gone)
    w.pass_time(LONGEST_RETRY_S + FIRST_QUIET_S + 2 * EXAMINE_EVERY_S)
    assert (w.indices, w.unhealthy) == (before, set())


def test_a_gpu_that_replaces_another_gets_an_index_of_its_own(watched: Watch) -> None:
    w = watched("t4")
    w.look()
    before = w.indices
    old = w.machine.take_out(0)
    w.machine.put_back(0, fake.FakeGpu("GPU-new", "Tesla T4", 15109, old.bus, capability=(7, 5)))
    w.pass_time(READ_EVERY_S + 1)
    assert w.indices == {**before, "GPU-new": 4}
    assert w.unhealthy == {0}
    assert len(w.published().gpus) == 5


def test_a_restarted_agent_keeps_indices_and_ill_health(watched: Watch) -> None:
    w = watched("t4")
    w.look()
    w.machine.xid(3, 79)
    w.look()
    published, before = w.published(), w.indices
    w.monitor.close()
    lost = w.machine.take_out(0)
    again = Watched(w.machine, known=published)
    again.look()
    try:
        assert again.indices == {uuid: index for uuid, index in before.items() if uuid != lost.uuid}
        assert again.unhealthy == {3}
    finally:
        again.monitor.close()


def test_one_slow_answer_is_forgiven_two_are_not(watched: Watch) -> None:
    w = watched("t4")
    w.look()
    w.machine.lose(2, fake.TIMEOUT)
    w.look(EXAMINE_EVERY_S)
    assert w.unhealthy == set()
    w.look(EXAMINE_EVERY_S)
    assert w.unhealthy == {2}


def test_a_driver_that_comes_later_is_found(watched: Watch) -> None:
    w = watched("t4")
    w.machine.unload()
    w.look()
    assert (w.down, w.indices, w.published().gpus) == ("DriverNotLoaded", {}, ())
    w.pass_time(300)
    tried = w.opened
    assert 3 < tried < 12
    w.machine.load()
    w.pass_time(LONGEST_RETRY_S + 1)
    assert (w.down, len(w.indices)) == ("", 4)


def test_a_driver_that_goes_away_makes_known_gpus_unhealthy_until_it_is_back(watched: Watch) -> None:
    w = watched("mig")
    w.look()
    before = w.indices
    w.machine.unload()
    assert w.look(1)
    assert (w.down, w.indices, w.unhealthy) == ("DriverNotLoaded", before, {0, 1})
    assert len(w.monitor.seen.health.reasons) == 2 + 4
    w.machine.load()
    w.pass_time(FIRST_RETRY_S * 4 + FIRST_QUIET_S + EXAMINE_EVERY_S)
    assert (w.down, w.indices, w.unhealthy) == ("", before, set())


def test_a_driver_that_hangs_makes_known_gpus_unhealthy_until_it_answers(watched: Watch) -> None:
    w = watched("mig")
    w.look()
    before = w.indices
    w.monitor.report_hang(60.0)
    assert (w.down, w.indices, w.unhealthy, w.monitor.readings) == ("DriverError", before, {0, 1}, ())
    assert w.look(1)
    assert (w.down, w.indices, w.unhealthy) == ("", before, {0, 1})
    w.pass_time(FIRST_QUIET_S + EXAMINE_EVERY_S)
    assert (w.unhealthy, w.opened) == (set(), 1)


def test_instances_that_were_destroyed_are_forgotten(watched: Watch) -> None:
    w = watched("mig")
    w.look()
    w.machine.xid(0, 94, gi=2, ci=0)
    w.look()
    assert len(w.monitor.seen.health.reasons) == 1
    w.machine.gpus[0].instances.clear()
    w.machine.gpus[0].mig = (0, 0)
    w.machine.write()
    w.look(READ_EVERY_S)
    assert w.monitor.seen.health.reasons == {}
    assert [gpu.mig for gpu in w.monitor.seen.machine.gpus] == [Mig.OFF, Mig.OFF]


@pytest.fixture
def elsewhere() -> Elsewhere:
    """Return what runs Python in a process with another environment."""

    def run(code: str, environment: dict[str, str]) -> str:
        command = [sys.executable, "-W", "error", "-c", code]
        return subprocess.run(
            command, env={**os.environ, **environment}, check=True, text=True, capture_output=True, timeout=60
        ).stdout

    return run


def test_a_library_that_is_installed_later_is_found(elsewhere: Elsewhere, tmp_path: Path) -> None:
    machine = fake.t4_pcie(tmp_path / "machine")
    environment = {**fake.without_library(tmp_path), fake.STATE_VARIABLE: str(machine.path)}
    later = f"""
from pathlib import Path
from gputile.node.nvml.gpu_monitor import LONGEST_RETRY_S, GpuMonitor
from gputile.node.nvml.nvml_probe import NvmlSession
now_s = 0.0
monitor = GpuMonitor(NvmlSession, clock=lambda: now_s)
monitor.step(0.01)
print(monitor.seen.machine.down.reason)
here = Path({str(tmp_path / "libnvidia-ml.so.1")!r})
here.unlink()
here.symlink_to({str(fake.library())!r})
now_s = LONGEST_RETRY_S
monitor.step(0.01)
print(len(monitor.seen.machine.gpus))
"""
    assert elsewhere(later, environment) == "DriverMissing\n4\n"
