"""The processes of a container share one limit, and what a process held ends with it, however it ends."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gputile.node.arbiter.accounts import WHOLE, Share
from gputile.node.isolation.library import GpuLimit, encode_limits
from gputile.node.isolation.usage_file_reader import GpuUsage, read_usage
from gputile.node.native_layouts import USAGE_BYTES
from tests.integration.arbiter.process import ArbiterProcess
from tests.native.container import Container, Program, program

Maker = Callable[..., Container]
MIB = 1 << 20


def started(process: Program) -> Program:
    line = process.line()
    assert line == "started", (line, process.communicate(), process.returncode)
    return process


@pytest.mark.requirement("M4")
def test_64_allocators_and_kills(one_gpu: Maker) -> None:
    """64 processes allocate in every way while some of them are killed: never over the limit, nothing is lost."""
    container = one_gpu(256, overhead_mib=0)  # which is measured, so it is not exact while others allocate
    stress = program("stress")
    running = [started(container.start([stress, str(seed), "1", "0"])) for seed in range(64)]
    chance = random.Random(6)
    for seed in range(64, 96):
        time.sleep(0.02)
        victim = running.pop(chance.randrange(len(running)))
        victim.end()
        running.append(started(container.start([stress, str(seed), "1", "0"])))
    for process in running:
        process.send_signal(signal.SIGKILL)
    for process in running:
        process.communicate()
    gpu = container.gpus.gpus()[0]
    assert 200 * MIB < gpu.peak <= 256 * MIB
    assert container.python("cuda = Cuda(); print(cuda.info(), cuda.linear(256))") == "(256, 256) 0\n"


@pytest.mark.requirement("M4")
def test_linear_memory_is_exact_under_concurrency(one_gpu: Maker) -> None:
    """Reservation and limit are one atomic step: 16 processes that ask at the same time get what there is."""
    container = one_gpu(100)
    code = """
cuda = Cuda()
print("started", flush=True); input()
print(sum(cuda.linear(2) == OK for _ in range(20)), flush=True); input()
"""
    running = [started(container.begin(code)) for _ in range(16)]
    for process in running:
        process.go_on()
    assert sum(int(process.line()) for process in running) == 50
    assert container.gpus.gpus()[0].peak == 100 * MIB
    for process in running:
        process.end()


@pytest.mark.requirement("M4")
def test_a_killed_process_gives_back(one_gpu: Maker) -> None:
    """What a killed process held is there for the next, at once, and also while it is a zombie."""
    container = one_gpu(256)
    code = """
cuda = Cuda()
assert cuda.linear(250) == OK
print("started", flush=True)
input()
"""
    process = started(container.begin(code))
    assert container.python("cuda = Cuda(); print(cuda.info()[0], cuda.linear(10))") == "6 2\n"
    process.kill()
    while process.stdout is not None and process.stdout.read(1):
        pass  # its end of the pipe is closed, but it was not waited for
    assert container.python("cuda = Cuda(); print(cuda.info()[0], cuda.linear(200))") == "256 0\n"
    process.communicate()


@pytest.mark.requirement("M4")
def test_a_process_that_closes_all_descriptors(one_gpu: Maker) -> None:
    """A daemon that closes what it does not know still counts, before and after it allocates again."""
    container = one_gpu(256)
    code = """
import os
cuda = Cuda()
assert cuda.linear(100) == OK
usage = [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{fd}").endswith("/usage")]
for fd in usage: # all but the driver's own, without which no CUDA goes on
    os.dup2(os.open("/dev/null", os.O_RDONLY), fd)
print("started")
print(len(usage), flush=True)
input()
print(cuda.linear(100), cuda.linear(100), flush=True)
input()
"""
    process = started(container.begin(code))
    assert process.line() == "2"
    assert container.python("print(Cuda().info()[0])") == "156\n"
    process.go_on()
    assert process.line() == "0 2"
    assert container.python("print(Cuda().info()[0])") == "56\n"
    process.end()
    assert container.python("print(Cuda().info()[0])") == "256\n"


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("closed", ["0<&- 1>&- 2>&-", "1>&- 2>&-", "0<&- 2>&-"])
def test_a_process_without_standard_streams(one_gpu: Maker, closed: str) -> None:
    """What a daemon prints into the void does not get into the counts, whose file would have these numbers."""
    container = one_gpu(256)
    code = """
from tests.native.client import *
import os
cuda = Cuda()
assert cuda.linear(100) == OK
for number in (0, 1, 2):
    if os.path.realpath(f"/proc/self/fd/{number}").endswith("/gpus"): continue # the simulated driver's own
    try: os.write(number, b"x" * 4096)
    except OSError: pass
assert cuda.info()[0] == 156
assert cuda.linear(200) == OUT_OF_MEMORY
"""
    container.run(["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code])
    assert container.usage.stat().st_size == USAGE_BYTES
    assert container.python("print(Cuda().info()[0])") == "256\n"


@pytest.mark.requirement("M4")
def test_memory_is_given_back_without_any_free_descriptor(one_gpu: Maker) -> None:
    """As by a program that has closed all descriptors and has as many open as it may; it gets nothing meanwhile."""
    container = one_gpu(256)
    code = """
import os, resource
cuda = Cuda()
assert cuda.linear(100) == OK
for fd in map(int, os.listdir("/proc/self/fd")):
    if os.path.realpath(f"/proc/self/fd/{fd}").endswith("/usage"): os.dup2(os.open("/dev/null", os.O_RDONLY), fd)
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
print(cuda.free_linear(), cuda.linear(1))
resource.setrlimit(resource.RLIMIT_NOFILE, before)
print(cuda.info()[0])
"""
    assert container.python(code) == "0 2\n256\n"


@pytest.mark.requirement("M4")
def test_a_process_whose_first_thread_has_ended(one_gpu: Maker) -> None:
    """A zombie by its first thread, its lock gone; while another thread is there, the driver's memory is."""
    container = one_gpu(256)
    code = """
import ctypes, os, sys, threading
cuda = Cuda()
assert cuda.linear(100) == OK
for fd in [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{fd}").endswith("/usage")]:
    os.close(fd)
for line in [line for line in open("/proc/self/maps") if line.endswith("/usage\\n")]: # which holds the lock too
    begin, end = (int(address, 16) for address in line.split()[0].split("-"))
    assert ctypes.CDLL(None).munmap(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)) == 0
first = os.getpid()
def last():
    while open(f"/proc/{first}/task/{first}/stat").read().rpartition(") ")[2][0] != "Z":
        pass
    print("started", flush=True)
    sys.stdin.readline()
    os._exit(0)
threading.Thread(target=last).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    process = started(container.begin(code))
    assert container.python("cuda = Cuda(); print(cuda.info()[0], cuda.linear(200))") == "156 2\n"
    process.end()
    assert container.python("print(Cuda().info()[0])") == "256\n"


TRAINER = """
import os, signal, subprocess
cuda = Cuda()
assert cuda.linear(200) == OK
left = subprocess.Popen(["sleep", "20"])
child = os.fork()
if child == 0:
    signal.pause()
print("started", flush=True)
print(child, flush=True)
input()
"""


def worker_of_a_dead_trainer(container: Container) -> int:
    """Return the process ID of a forked worker whose parent was killed with 200 MiB; a program by exec is left too."""
    process = started(container.begin(TRAINER, PYTHONUNBUFFERED="1"))
    child = int(process.line())
    process.kill()
    process.wait()
    return child


@pytest.mark.requirement("M4")
def test_a_worker_that_outlives_its_trainer(one_gpu: Maker) -> None:
    """A forked child has the driver's descriptors, and with them the memory of its dead parent; one by exec not."""
    container = one_gpu(256)
    child = worker_of_a_dead_trainer(container)
    assert container.python("cuda = Cuda(); print(cuda.info()[0], cuda.linear(57), cuda.linear(56))") == "56 2 0\n"
    os.kill(child, signal.SIGKILL)
    until(lambda: container.python("print(Cuda().info()[0])") == "256\n")
    assert container.gpus.gpus()[0].peak == 256 * MIB


@pytest.mark.requirement("M4")
def test_the_last_to_have_a_dead_process_memory(one_gpu: Maker) -> None:
    """What a worker keeps of its dead trainer is given to others after the driver has freed it, never before."""
    container = one_gpu(256)
    next_one = """
cuda = Cuda()
print("started", flush=True)
while cuda.linear(200) != OK:
    pass
print("done", flush=True)
"""
    for _ in range(10):
        child = worker_of_a_dead_trainer(container)
        waiting = started(container.begin(next_one))
        os.kill(child, signal.SIGKILL)
        assert waiting.communicate()[0] == "done\n"
    assert container.gpus.gpus()[0].peak == 200 * MIB


@pytest.mark.requirement("M4")
def test_parents_killed_at_any_moment_lock_nobody_up(one_gpu: Maker) -> None:
    """A forked child has no part in the locks that its parent takes for a moment."""
    container = one_gpu(256)
    code = """
import os, signal, time
cuda = Cuda()
assert cuda.linear(1) == OK
if os.fork() == 0:
    time.sleep(5)
    os._exit(0)
print("started", flush=True)
while True:
    cuda.info()
"""
    for _ in range(12):
        process = started(container.begin(code))
        time.sleep(0.01)
        process.kill()
        process.wait()
    assert container.python("cuda = Cuda(); print(cuda.linear(200))") == "0\n"


@pytest.mark.requirement("M4")
def test_a_program_that_becomes_another_one(one_gpu: Maker) -> None:
    """With exec the driver's descriptors close; what the process had as the program before counts no more."""
    code = """
import os, sys
from tests.native.client import *
round = int(os.environ.get("ROUND", "0"))
cuda = Cuda()
print(cuda.info()[0], cuda.linear(100), flush=True)
if round < 5:
    os.environ["ROUND"] = str(round + 1)
    os.execv(sys.executable, [sys.executable, "-c", os.environ["CODE"]])
print("started", flush=True)
input()
os.execvp("sleep", ["sleep", "60"])
"""
    container = one_gpu(256)
    process = container.start([sys.executable, "-c", code], CODE=code)
    assert [process.line() for _ in range(6)] == ["256 0"] * 6
    started(process)
    assert container.python("print(Cuda().info()[0])") == "156\n"
    process.go_on()
    until(lambda: container.python("print(Cuda().info()[0])") == "256\n")
    process.end()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.requirement("M4", "M5")
def test_threads_that_are_cancelled(one_gpu: Maker, tmp_path: Path) -> None:
    """A thread that is cancelled inside the library, waiting for a turn as well, takes no lock along."""
    container = one_gpu(256)
    assert container.run([program("cancel"), "100"]) == "done\n"
    with ArbiterProcess(tmp_path) as arbiter:
        gpu = container.gpus.uuids[0]
        (path,) = arbiter.assign({"allocation": {gpu: Share(ceiling=WHOLE // 4, guarantee=WHOLE // 4)}})
        container.limits.write_bytes(encode_limits([GpuLimit(gpu, 256)], turn=str(path)))
        assert container.run([program("cancel"), "100"]) == "done\n"


@pytest.mark.requirement("M4")
def test_threads_that_are_cancelled_while_they_make_a_context(one_gpu: Maker) -> None:
    """No other thread waits for ever, and nothing but the contexts of cancelled threads is held."""
    container = one_gpu(1000, context_mib=1)
    assert container.run([program("cancel"), "400", "contexts"]) == "done\n"


@pytest.mark.requirement("M4")
def test_signals_do_not_break_the_count(one_gpu: Maker) -> None:
    """System calls that a signal interrupts are made again."""
    container = one_gpu(64)
    process = started(container.start([program("stress"), "3", "4", "2000"]))
    while process.poll() is None:
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.001)
    assert process.returncode == 0
    assert container.python("print(Cuda().info()[0])") == "64\n"


@pytest.mark.requirement("B7")
def test_peak_and_refusals_are_counted_for_the_container(one_gpu: Maker) -> None:
    """Of all of its processes, and whichever way memory is asked for; what a trim makes room for is no refusal."""
    container = one_gpu(100, overhead_mib=0)
    code = """
cuda = Cuda()
print([cuda.linear(60), cuda.linear(30), cuda.linear(60), cuda.linear(60)], flush=True); input()
"""
    process = container.begin(code)
    assert process.line() == "[0, 0, 2, 2]"
    assert read_usage(container.usage, 1) == (GpuUsage(90 * MIB, 90 * MIB, 2),)
    process.end()
    assert read_usage(container.usage, 1) == (GpuUsage(0, 90 * MIB, 2),), "what it held has ended with it"
    pools = """
cuda = Cuda()
print(cuda.pooled(40), cuda.pooled(200))
"""
    assert container.python(pools) == "0 2\n"
    assert read_usage(container.usage, 1) == (GpuUsage(0, 90 * MIB, 3),)
