"""What GPUs measure of themselves, and the processes that use them."""

import pytest

from gputile.node.nvml.gpu_monitor import EXAMINE_EVERY_S, Monitor
from gputile.node.nvml.nvml_probe import open_real
from gputile.node.nvml.probe import GpuProcess, GpuReading
from tests.fakes import nvml as fake

from .conftest import Present, ProbeOf

pytestmark = pytest.mark.requirement("B7")
MIB = 1 << 20


def test_all_that_a_gpu_measures(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    gpu = machine.gpus[1]
    gpu.used, gpu.busy, gpu.celsius, gpu.milliwatts, gpu.ecc = 300 * MIB, 87, 61, 55_500, (4, 1)
    gpu.processes = [fake.Process(11, 5 * MIB), fake.Process(12, 7 * MIB)]
    machine.write()
    probe.inventory()
    found = probe.readings()
    processes = (GpuProcess(11, gpu.uuid, 5 * MIB), GpuProcess(12, gpu.uuid, 7 * MIB))
    assert found[1] == GpuReading(gpu.uuid, 300 * MIB, 87, 61, 55.5, 4, 1, processes)
    assert found[0] == GpuReading(machine.gpus[0].uuid, 0), "what it does not know it leaves out"


def test_a_process_that_computes_through_mps_counts_once(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    gpu = machine.gpus[0]
    gpu.processes = [fake.Process(11, 5), fake.Process(11, 9, mps=True), fake.Process(12, 3, mps=True)]
    machine.write()
    probe.inventory()
    assert probe.readings()[0].processes == (GpuProcess(11, gpu.uuid, 9), GpuProcess(12, gpu.uuid, 3))


def test_a_process_on_a_mig_instance_is_that_instances(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("mig")
    gpu = machine.gpus[0]
    instance = gpu.instances[1]
    gpu.processes = [fake.Process(11, 5, instance.gi, instance.ci)]
    machine.write()
    probe.inventory()
    assert probe.readings()[0].processes == (GpuProcess(11, instance.uuid, 5),)


def test_a_gpu_that_does_not_answer_is_left_out(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    probe.inventory()
    machine.lose(2)
    assert [reading.uuid for reading in probe.readings()] == [
        gpu.uuid for index, gpu in enumerate(machine.gpus) if index != 2
    ]


def test_the_monitor_keeps_what_was_measured_and_counts_xids(present: Present) -> None:
    machine, now = present("t4"), [0.0]
    monitor = Monitor(open_real, clock=lambda: now[0])
    monitor.step(0.0)
    assert [reading.used for reading in monitor.readings] == [0] * 4
    machine.gpus[0].used = 5
    machine.xid(3, 79)
    machine.xid(3, 79)
    monitor.step(0.1)
    assert monitor.xids == {(machine.gpus[3].uuid, 79): 2}
    assert monitor.readings[0].used == 0, "measured again when the GPUs are examined"
    now[0] += EXAMINE_EVERY_S
    monitor.step(0.0)
    assert monitor.readings[0].used == 5
    machine.unload()
    now[0] += EXAMINE_EVERY_S
    monitor.step(0.0)
    assert monitor.readings == ()
    monitor.close()
