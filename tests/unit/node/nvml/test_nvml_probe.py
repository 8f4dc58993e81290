"""What the probe tells of machines of every kind, and what their GPUs measure of themselves."""

import pynvml  # type: ignore[import-untyped]
import pytest

from gputile.node.nvml.errors import problem_of
from gputile.node.nvml.gpu_health import Health
from gputile.node.nvml.gpu_monitor import EXAMINE_EVERY_S, GpuMonitor
from gputile.node.nvml.nvml_probe import NvmlSession
from gputile.node.nvml.probe import GpuReading, Mig, inventory_of
from tests.fakes import nvml as fake

from .conftest import Present, ProbeOf


def test_a_gpu_is_told_as_nvidia_smi_prints_it(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    gpu = probe.inventory().gpus[2]
    assert (gpu.index, gpu.uuid, gpu.model, gpu.mib) == (2, machine.gpus[2].uuid, "Tesla T4", 15109)
    assert (gpu.bus_id, gpu.numa) == ("00000000:17:00.0", 1)
    assert (gpu.mig, gpu.instances) == (Mig.INCAPABLE, ())


def test_an_architecture_is_told_where_nvml_knows_it(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    machine.gpus[0].architecture, machine.gpus[1].architecture = 9, 200
    machine.write()
    assert [gpu.architecture for gpu in probe.inventory().gpus] == ["Hopper", "", "", ""]


@pytest.mark.parametrize(("kind", "groups"), [("a100", [0] * 8), ("v100", [0] * 8), ("t4", [-1] * 4)])
def test_gpus_that_nvlink_connects_over_others_too_are_one_group(
    probe_of: ProbeOf, kind: str, groups: list[int]
) -> None:
    _, probe = probe_of(kind)
    assert [gpu.nvlink_group for gpu in probe.inventory().gpus] == groups


def test_pairs_by_nvlink_are_groups_and_gpus_without_a_link_have_none(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("v100")
    for place, gpu in enumerate(machine.gpus):
        partner = machine.gpus[(1, 0, 4, 7, 2, 5, 6, 3)[place]]
        gpu.links = [fake.Link(2, fake.TO_GPU, partner.bus)] if partner is not gpu else []
    machine.write()
    assert [gpu.nvlink_group for gpu in probe.inventory().gpus] == [0, 0, 2, 3, 2, -1, -1, 3]


def test_nvswitch_connects_every_pair_at_full_speed(probe_of: ProbeOf) -> None:
    _, probe = probe_of("a100")
    rows = probe.inventory().bandwidth
    assert all(rows[i][j] == (0 if i == j else 12 * 25.0) for i in range(8) for j in range(8))


def test_a_cube_mesh_has_one_link_two_links_or_pcie(probe_of: ProbeOf) -> None:
    _, probe = probe_of("v100")
    rows = probe.inventory().bandwidth
    for i, row in enumerate(fake.CUBE_MESH):
        for j, links in enumerate(row):
            assert rows[i][j] == 25.0 * int(links) if links != "0" else rows[i][j] < 25.0


def test_pcie_is_slower_the_further_apart(probe_of: ProbeOf) -> None:
    _, probe = probe_of("t4")
    rows = probe.inventory().bandwidth
    assert rows[0][1] == pytest.approx(15.8)  # generation 3, 16 lanes, below one switch
    assert rows[0][1] > rows[0][2] == rows[1][3] > 0


def test_mig_instances_have_their_profile_and_memory(probe_of: ProbeOf) -> None:
    _, probe = probe_of("mig")
    split, whole = probe.inventory().gpus
    assert (split.mig, whole.mig) == (Mig.ON, Mig.OFF)
    assert [(m.profile, m.mib) for m in split.instances] == [
        ("3g.40gb", 40192),
        ("2g.20gb", 19968),
        ("1g.10gb", 9728),
        ("1g.10gb", 9728),
    ]
    assert whole.instances == ()


def test_an_instance_whose_name_tells_no_profile_is_not_offered(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("mig")
    machine.gpus[0].instances[0].name = "NVIDIA A100-SXM4-80GB"
    machine.write()
    assert [m.profile for m in probe.inventory().gpus[0].instances] == ["2g.20gb", "1g.10gb", "1g.10gb"]


def test_a_gpu_in_mig_mode_is_not_published_for_sharing(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("mig")
    published = inventory_of(probe.inventory(), Health())
    assert [gpu.uuid for gpu in published.gpus] == [machine.gpus[1].uuid]
    assert published.bandwidth == ((0.0,),)


def test_a_lost_gpu_does_not_hide_the_others(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    machine.lose(1)
    seen = probe.inventory()
    assert [gpu.index for gpu in seen.gpus] == [0, 2, 3]
    assert [problem.reason for problem in seen.problems] == ["CardLost"]
    assert "GPU 1" in seen.problems[0].message
    assert "reset the GPU" in seen.problems[0].message


@pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetHandleByIndex_v2"])
def test_a_gpu_that_fails_half_way_is_named(probe_of: ProbeOf, function: str) -> None:
    machine, probe = probe_of("mig")
    machine.fail(function, gpu=1)
    seen = probe.inventory()
    assert [gpu.index for gpu in seen.gpus] == [0]
    assert "GPU 1: NVML answered Unknown Error (999)" in seen.problems[0].message


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetMigMode",
        "nvmlEventSetCreate",
        "nvmlDeviceRegisterEvents",
    ],
)
def test_a_fact_that_an_old_driver_does_not_know_costs_no_gpu(probe_of: ProbeOf, function: str) -> None:
    machine, probe = probe_of("v100")
    machine.fail(function, code=3)
    assert len(probe.inventory().gpus) == 8
    assert not any(sign.fault for sign in probe.examine())


def test_a_gpu_without_memory_of_its_own_is_offered_whole_and_not_by_memory(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    machine.gpus[0].mib = 0
    machine.write()
    seen = probe.inventory()
    assert [gpu.unified for gpu in seen.gpus] == [True, False, False, False]
    assert seen.problems == ()
    assert [sign.fault for sign in probe.examine()] == [None] * 4
    assert seen.gpus[0].mib > 0, "the machine's"
    assert len(inventory_of(seen, Health(), mode="default").gpus) == 4
    assert len(inventory_of(seen, Health(), mode="cgpu").gpus) == 3
    assert [gpu.mib for gpu in inventory_of(seen, Health(), mode="cgpu", shared_mib=512).gpus] == [512] * 4
    assert inventory_of(seen, Health(), mode="default", shared_mib=512).gpus[3].mib == machine.gpus[3].mib


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        (9, "DriverNotLoaded", "modprobe nvidia"),
        (18, "DriverVersionMismatch", "reboot"),
        (4, "DriverNoPermission", "/dev/nvidiactl"),
        (999, "DriverError", "kernel's log"),
    ],
)
def test_a_driver_that_does_not_work_says_why(present: Present, code: int, reason: str, remedy: str) -> None:
    present("t4").unload(code)
    with pytest.raises(pynvml.NVMLError) as raised:
        NvmlSession()
    problem = problem_of(raised.value.value)
    assert problem.reason == reason
    assert remedy in problem.message


def test_bytes_that_are_no_text_are_a_failed_call(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    text = machine.path.read_bytes()
    machine.path.write_bytes(text.replace(b"Tesla T4", b"Tesla \xff\xfe", 1))
    seen = probe.inventory()
    assert [gpu.index for gpu in seen.gpus] == [1, 2, 3]
    assert "GPU 0" in seen.problems[0].message


MIB = 1 << 20


@pytest.mark.requirement("B7")
def test_all_that_a_gpu_measures(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    gpu = machine.gpus[1]
    gpu.used, gpu.busy, gpu.celsius, gpu.milliwatts, gpu.ecc = 300 * MIB, 87, 61, 55_500, (4, 1)
    machine.write()
    probe.inventory()
    found = probe.readings()
    assert found[1] == GpuReading(gpu.uuid, 300 * MIB, 87, 61, 55.5, 4, 1)
    assert found[0] == GpuReading(machine.gpus[0].uuid, 0), "what it does not know it leaves out"


@pytest.mark.requirement("B7")
def test_the_monitor_keeps_what_was_measured_and_counts_xids(present: Present) -> None:
    machine, now = present("t4"), [0.0]
    monitor = GpuMonitor(NvmlSession, clock=lambda: now[0])
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
