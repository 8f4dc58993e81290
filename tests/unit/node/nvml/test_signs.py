"""What the probe reports while GPUs break and recover."""

import time
from collections.abc import Iterable

import pytest

from gputile.node.nvml.gpu_health import Examined, Sign, XidSeen

from .conftest import ProbeOf


def troubles(signs: Iterable[Sign]) -> dict[str, str]:
    return {sign.uuid: sign.fault for sign in signs if isinstance(sign, Examined) and sign.fault}


def test_an_xid_is_reported_at_once_and_once(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    probe.inventory()
    machine.xid(2, 79)
    machine.xid(3, 31)
    assert probe.watch_health(3600) == (XidSeen(machine.gpus[2].uuid, 79), XidSeen(machine.gpus[3].uuid, 31))
    assert probe.watch_health(0.02) == ()


def test_an_event_of_a_mig_instance_is_of_that_instance(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("mig")
    probe.inventory()
    instance = machine.gpus[0].instances[1]
    machine.xid(0, 94, gi=instance.gi, ci=instance.ci)
    machine.xid(0, 94, gi=instance.gi)
    machine.xid(0, 94)
    gpu = machine.gpus[0].uuid
    assert [sign.uuid for sign in probe.watch_health(1)] == [instance.uuid, instance.uuid, gpu]


def test_a_lost_gpu_is_found_and_the_others_stay_watched(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    probe.inventory()
    machine.lose(0)
    signs = probe.watch_health(2)
    assert list(troubles(signs)) == [machine.gpus[0].uuid]
    assert "fallen off the bus" in troubles(signs)[machine.gpus[0].uuid]
    machine.xid(1, 48)
    assert probe.watch_health(2) == (XidSeen(machine.gpus[1].uuid, 48),)


def test_a_wait_that_keeps_failing_does_not_spin(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    probe.inventory()
    machine.fail("nvmlEventSetWait_v2")
    began = time.monotonic()
    signs = probe.watch_health(0.2)
    assert time.monotonic() - began >= 0.2
    assert len(signs) == 4
    assert not troubles(signs)


@pytest.mark.parametrize(("code", "suspected"), [(15, False), (16, False), (10, True), (999, True)])
def test_what_may_pass_is_told_from_what_does_not(probe_of: ProbeOf, code: int, suspected: bool) -> None:
    machine, probe = probe_of("t4")
    probe.inventory()
    machine.lose(1, code)
    sign = probe.examine()[1]
    assert sign.fault
    assert sign.suspected is suspected


def test_broken_memory_needs_a_reset_or_a_new_gpu(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("a100")
    probe.inventory()
    machine.gpus[0].rows = (1, 0)
    machine.gpus[1].rows = (0, 1)
    machine.write()
    told = troubles(probe.examine())
    assert "reset the GPU" in told[machine.gpus[0].uuid]
    assert "replace the GPU" in told[machine.gpus[1].uuid]
    assert len(told) == 2


def test_what_the_driver_asks_for_is_passed_on(probe_of: ProbeOf) -> None:
    machine, probe = probe_of("t4")
    probe.inventory()
    machine.gpus[0].recovery = 0
    machine.gpus[1].recovery = 2
    machine.gpus[2].recovery = 99
    machine.write()
    told = troubles(probe.examine())
    assert set(told) == {machine.gpus[1].uuid, machine.gpus[2].uuid}
    assert "reboot the node" in told[machine.gpus[1].uuid]
