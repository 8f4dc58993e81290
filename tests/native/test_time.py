"""GPU time of a container's processes, whatever their number and whatever they may not do."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gputile.node.arbiter.accounts import WHOLE, Share
from gputile.node.isolation.library import GpuLimit, encode_limits
from tests.integration.arbiter.busy import until
from tests.integration.arbiter.process import ArbiterProcess, write_share
from tests.native.container import Container, program

pytestmark = pytest.mark.alone

Maker = Callable[..., Container]
SECONDS = (3.0, 12.0)
TENTH = WHOLE // 10
QUANTUM_MS = 30
# A quantum at the beginning and one at the end, turns that last longer, and a machine that stands still.
MORE = 1.15


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def shares(container: Container) -> dict[str, Share]:
    return {container.gpus.uuids[0]: Share(10, TENTH, TENTH)}


def without_arbiter(container: Container, directory: Path) -> None:
    """Let the container's processes keep to a tenth of the GPU by the file alone."""
    write_share(directory, QUANTUM_MS, shares(container))
    wait_for(container, directory / "time.sock")


def wait_for(container: Container, socket: Path) -> None:
    container.limits.write_bytes(encode_limits([GpuLimit(container.gpus.uuids[0], 256)], turn=str(socket)))


def with_arbiter(container: Container, stack: ExitStack, directory: Path) -> None:
    arbiter = stack.enter_context(ArbiterProcess(directory))
    (path,) = arbiter.assign({"allocation": shares(container)})
    wait_for(container, path)


def busy_ns(container: Container) -> int:
    return container.gpus.gpus()[0].busy_ns


def keeps_to_a_tenth(container: Container) -> bool:
    """Look for longer where the machine stood still in the first window, which ends turns late."""
    for seconds in SECONDS:
        begin, had = time.monotonic(), busy_ns(container)
        time.sleep(seconds)
        part = (busy_ns(container) - had) / 1e9 / (time.monotonic() - begin)
        if part < 0.1 * MORE:
            return part > 0.02
    print(part)
    return False


def start(container: Container, number: int, *how: str) -> list[subprocess.Popen[str]]:
    command: list[str | Path] = [program("threadless"), how[0] if how else "free", "600", *how[1:]]
    return [container.start(command) for _ in range(number)]


@pytest.mark.requirement("M5")
@pytest.mark.parametrize("served", [True, False], ids=["under an arbiter", "without one"])
def test_eighty_processes_have_their_containers_share_together(
    one_gpu: Maker, stack: ExitStack, tmp_path: Path, served: bool
) -> None:
    """A tenth for all of them, not for each; none is refused, and none goes by its own clock beside the others."""
    container = one_gpu(256)
    if served:
        with_arbiter(container, stack, tmp_path)
    else:
        without_arbiter(container, tmp_path)
    start(container, 80)
    until(lambda: busy_ns(container) > 300_000_000, "nobody gets anything")
    assert keeps_to_a_tenth(container)
    if served:
        until(lambda: all(p.busy_ns[0] for p in container.gpus.processes()), "one of them gets nothing")


@pytest.mark.requirement("M5")
@pytest.mark.parametrize(("number", "how"), [(4, ("seccomp",)), (1, ("processes", "2"))])
def test_a_process_that_may_start_no_threads_keeps_to_the_share(
    one_gpu: Maker, stack: ExitStack, tmp_path: Path, how: tuple[str, ...], number: int
) -> None:
    """With none at all, and with the keeper only; it says so once."""
    container = one_gpu(256)
    with_arbiter(container, stack, tmp_path)
    processes = start(container, number, *how)
    until(lambda: busy_ns(container) > 100_000_000, "nobody gets anything")
    assert keeps_to_a_tenth(container)
    for process in processes:
        process.kill()
        assert process.communicate()[1].count("can start no threads") == 1


@pytest.mark.requirement("M5")
def test_a_process_that_is_killed_has_paid_for_its_turn(one_gpu: Maker, tmp_path: Path) -> None:
    """Whoever kills his processes all the while gets no more by it, and the others go on."""
    container = one_gpu(256)
    without_arbiter(container, tmp_path)
    (steady,) = start(container, 1)
    until(lambda: busy_ns(container) > 100_000_000, "nobody gets anything")
    had, begin = busy_ns(container), time.monotonic()
    while time.monotonic() - begin < SECONDS[0]:
        (one,) = start(container, 1)
        time.sleep(0.2)
        one.send_signal(signal.SIGKILL)
        one.communicate()
    assert (busy_ns(container) - had) / 1e9 / (time.monotonic() - begin) < 0.1 * MORE
    before = next(p.busy_ns[0] for p in container.gpus.processes() if p.pid == steady.pid)
    until(
        lambda: next(p.busy_ns[0] for p in container.gpus.processes() if p.pid == steady.pid) > before + 50_000_000,
        "the one that lives gets nothing any more",
    )
