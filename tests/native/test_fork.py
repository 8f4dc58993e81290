"""Processes that fork: all that an allocation's processes hold is counted, once, and nobody waits for a lost lock."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gputile.node.arbiter.accounts import Share
from gputile.node.isolation.library import GpuLimit, encode_limits
from tests.integration.arbiter.process import ArbiterProcess
from tests.native.container import Container, program

Maker = Callable[..., Container]
MIB = 1 << 20


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def share_time(container: Container, stack: ExitStack, directory: Path) -> ArbiterProcess:
    """Let the container's processes wait for turns of an arbiter."""
    arbiter = stack.enter_context(ArbiterProcess(directory))
    (path,) = arbiter.assign({"allocation": {container.gpus.uuids[0]: Share()}})
    container.limits.write_bytes(encode_limits([GpuLimit(container.gpus.uuids[0], 256)], turn=str(path)))
    return arbiter


@pytest.mark.requirement("M4")
def test_a_fork_while_threads_are_inside_the_library(one_gpu: Maker) -> None:
    """Children of a process whose threads hold the library's locks use the GPU, run programs, and end."""
    container = one_gpu(256, context_mib=8)
    assert container.run([program("forks"), "4", "60"]) == "0\n"
    assert container.python("print(Cuda().info()[0])") == "248\n"


@pytest.mark.requirement("M4")
def test_a_fork_while_threads_look_for_symbols(one_gpu: Maker) -> None:
    """The loader's own lock is not made new in a child: none of the library's threads has it at a fork."""
    assert one_gpu(256).run([program("forks"), "4", "200", "ask"]) == "0\n"


@pytest.mark.requirement("M5")
def test_a_fork_while_threads_wait_for_turns(one_gpu: Maker, stack: ExitStack, tmp_path: Path) -> None:
    """The same with turns: a child has a connection and threads of its own, whatever its parent was about."""
    container = one_gpu(256)
    share_time(container, stack, tmp_path)
    assert container.run([program("forks"), "3", "30"]) == "0\n"
    assert container.python("print(Cuda().info()[0])") == "256\n"


@pytest.mark.requirement("M4")
def test_a_parents_end_does_not_free_its_childs_memory(one_gpu: Maker) -> None:
    """The driver frees what a process had when the last child that was forked from it has gone, and so do we."""
    container = one_gpu(256)
    code = """
import os
cuda = Cuda()
assert cuda.linear(100) == OK
if os.fork() == 0:
    prctl(PR_SET_PDEATHSIG, 0)
    child = Cuda()
    print(child.linear(120), child.linear(60), flush=True)
    input()
    os._exit(0)
os.wait()
"""
    parent = container.begin(code)
    assert parent.line() == "0 2"
    parent.kill()
    parent.wait()
    assert container.python("cuda = Cuda(); print(cuda.info()[0], cuda.linear(37), cuda.linear(36))") == "36 2 0\n"
    parent.go_on()
    assert parent.stdout is not None
    assert parent.stdout.read() == ""  # the child has ended: it had the other end
    assert container.python("print(Cuda().info()[0])") == "256\n"
    assert container.gpus.gpus()[0].peak <= 256 * MIB


@pytest.mark.requirement("M4")
def test_a_program_started_by_a_child_counts_for_itself(one_gpu: Maker) -> None:
    """Fork and exec, as subprocess does it: the new program has a slot of its own, the parent keeps its."""
    out = one_gpu(256).python("""
import subprocess, sys
cuda = Cuda()
assert cuda.linear(100) == OK
code = "from tests.native.client import *; c = Cuda(); print(c.info()[0], c.linear(150), c.linear(10))"
for how in ({}, {"preexec_fn": lambda: None}): # by vfork, and by fork
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **how).stdout.strip())
print(cuda.info()[0])
""")
    assert out.splitlines() == ["156 0 2", "156 0 2", "156"]


@pytest.mark.requirement("M5")
def test_a_child_outlives_its_parent_with_turns(one_gpu: Maker, stack: ExitStack, tmp_path: Path) -> None:
    """The child's connection is its own: its parent's end, in the midst of a turn, stops neither it nor others."""
    container = one_gpu(256)
    share_time(container, stack, tmp_path)
    launch = 'assert cuda("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, None, kernel, None) == OK'
    work = "ns = c_uint64(100000); kernel = (c_void_p * 1)(ctypes.cast(byref(ns), c_void_p))"
    code = f"""
import os
cuda = Cuda()
{work}
{launch}
if os.fork() == 0:
    prctl(PR_SET_PDEATHSIG, 0)
    cuda = Cuda()
    for _ in range(100):
        {launch}
    print("child", flush=True)
    input()
    for _ in range(100):
        {launch}
    print("orphan", flush=True)
    os._exit(0)
while True:
    {launch}
"""
    parent = container.begin(code)
    assert parent.line() == "child"
    parent.kill()
    parent.wait()
    parent.go_on()
    assert parent.line() == "orphan"
    out = container.python(f"cuda = Cuda()\n{work}\nfor _ in range(100):\n    {launch}\nprint('after')")
    assert out == "after\n"
