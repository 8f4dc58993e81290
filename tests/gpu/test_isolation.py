"""Limits of memory and shares of time on a real GPU, with the driver's API alone."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gputile.node.isolation.library import CONTAINER_LIBRARY, CONTAINER_PRELOAD, CONTAINER_USAGE
from gputile.node.isolation.usage_file_reader import read_usage
from gputile.node.nvml.nvml_probe import NvmlSession
from tests.gpu.neighbour import used_by_pid
from tests.native.container import IsolatedContainer, Program, library

MIB = 1 << 20
TAKES_AND_GIVES_BACK = """
import random, time
cuda = None
while cuda is None:
    try:
        cuda = Cuda()
    except AssertionError:  # no memory is left for a context
        time.sleep(0.01)
print("begun", flush=True)
held, chance = [], random.Random({seed})
while True:
    pointer = c_uint64()
    if held and chance.random() < 0.45:
        assert cuda("cuMemFree", held.pop(chance.randrange(len(held)))) == OK
    else:
        result = cuda("cuMemAlloc", byref(pointer), chance.randrange(1, 400 * MIB))
        assert result in (OK, OUT_OF_MEMORY), result
        held += [pointer] if result == OK else []
"""


@pytest.mark.requirement("M4")
def test_memory_holds_in_each_way() -> None:
    """As ``gputile selftest isolation`` proves it to people."""
    run_selftest("--seconds", "0")


@pytest.mark.requirement("G4", "M5")
def test_shares_of_time_hold() -> None:
    run_selftest("--seconds", "3")


def run_selftest(*options: str) -> None:
    program = "from gputile.cli.main import main; main()"
    command = [sys.executable, "-c", program, "selftest", "isolation", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)  # `make gpu` shows the figures
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.requirement("M4", "B1")
def test_programs_that_are_killed_leave_nothing_and_nobody_has_more_than_the_limit(
    nvml: NvmlSession, on_gpu: Callable[[int], IsolatedContainer]
) -> None:
    """By NVIDIA's own count, while six programs of two containers take, give back and die."""
    before = used_now(nvml)
    containers = {on_gpu(limit): limit for limit in (3072, 4096)}
    running = {c: [c.hold(TAKES_AND_GIVES_BACK.format(seed=i)) for i in range(3)] for c in containers}
    most, end, seen = 0, time.monotonic() + 15, 0
    while time.monotonic() < end:
        for container, limit in containers.items():
            used = used_together(running[container])
            seen += used > 0
            assert used <= limit * MIB, f"{used / MIB:.0f} MiB of {limit}"
            most = max(most, used * 100 // (limit * MIB))
        container = random.choice(list(containers))
        victim = running[container].pop()
        victim.kill()
        victim.wait()
        running[container].insert(0, container.hold(TAKES_AND_GIVES_BACK.format(seed=seen)))
    assert seen, "NVML lists none of the programs"
    assert most > 60, f"at most {most} % of a limit were in use, which proves little"
    for container in containers:
        container.close()
        counted = read_usage(container.usage, 1)
        assert counted is not None
        assert counted[0].used == 0
    until_used = time.monotonic() + 10
    while used_now(nvml) > before + 64 * MIB and time.monotonic() < until_used:
        time.sleep(0.2)
    assert used_now(nvml) <= before + 64 * MIB


def used_together(programs: list[Program]) -> int:
    """Return the bytes that programs have at one moment: they stand still meanwhile."""
    for program in programs:
        program.send_signal(signal.SIGSTOP)
    try:
        for program in programs:
            while Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ":
                time.sleep(0.001)
        by_pid = used_by_pid()
        return sum(by_pid.get(program.pid, 0) for program in programs)
    finally:
        for program in programs:
            program.send_signal(signal.SIGCONT)


def used_now(nvml: NvmlSession) -> int:
    used = nvml.readings()[0].used
    assert used is not None
    return used


@pytest.mark.requirement("M4")
def test_every_program_of_a_container_has_the_limit(on_gpu: Callable[[int], IsolatedContainer]) -> None:
    """With the mounts that the agent makes, in a mount namespace: nvidia-smi, and a program without an environment."""
    assert os.geteuid() == 0, "only root can make mounts"
    container = on_gpu(4096)
    directory = container.limits.parent
    upper = directory / "upper"
    (directory / "preload").write_text(f"{CONTAINER_LIBRARY}\n")
    mounts = {
        library(): CONTAINER_LIBRARY,
        container.usage: CONTAINER_USAGE,
        container.limits: "/etc/gputile/allocation/limits",
        directory / "preload": CONTAINER_PRELOAD,
    }
    script = [
        "set -e",
        f"mkdir {upper} && mount -t tmpfs gputile {upper} && mkdir {upper}/up {upper}/work",
        f"mount -t overlay gputile -o lowerdir=/etc,upperdir={upper}/up,workdir={upper}/work /etc",
        "mkdir -p /etc/gputile/allocation",
        *(f"touch {there} && mount --bind {here} {there}" for here, there in mounts.items()),
        "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits",
        f'env -i {sys.executable} -c \'import ctypes; c = ctypes.CDLL("libcuda.so.1"); print(c.cuInit(0));'
        " t = ctypes.c_size_t(); print(c.cuDeviceTotalMem_v2(ctypes.byref(t), 0), t.value >> 20)'",
    ]
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", "\n".join(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4096", "0", "0", "4096"]


FILLS = """
cuda = Cuda()
while cuda.linear(32) == OK:
    pass
print("full", flush=True)
import time; time.sleep(600)
"""
TRIES = """
cuda, context = Cuda(device=None), c_void_p()
print(cuda("cuInit", 0), flush=True)
for _ in range(5):
    print(cuda.library.cuCtxCreate_v2(byref(context), 0, 0), cuda("cuDevicePrimaryCtxRetain", byref(context), 0))
"""


@pytest.mark.requirement("M4")
def test_a_context_that_has_no_room_is_not_made_even_for_a_moment(
    nvml: NvmlSession, on_gpu: Callable[[int], IsolatedContainer]
) -> None:
    """A context takes its memory for a tenth of a second or more, in which NVML is asked many times."""
    container = on_gpu(2048)
    container.hold(FILLS)
    before, most, asked = used_now(nvml), 0, 0
    tries = container.begin(TRIES)
    while tries.poll() is None:
        most, asked = max(most, used_now(nvml)), asked + 1
    out, err = tries.communicate()
    assert out.split() == ["0", *["2"] * 10], err  # CUDA_ERROR_OUT_OF_MEMORY
    assert asked > 10
    assert most - before < 64 * MIB, f"{(most - before) / MIB:.0f} MiB more in {asked} readings"
