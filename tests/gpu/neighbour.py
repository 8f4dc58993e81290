"""Measures what a service feels of a neighbour that keeps the GPU busy, in each way to share it, and prints a table.

``python -m tests.gpu.neighbour [--seconds N] [--simulated]``

The ways are: each alone, the driver's own time-slicing, MPS, and gputile's turns, where the service has the higher
priority and nine times the weight, with the default quantum and the shortest. The simulated GPU does one thing after
the other as it comes, so it tells nothing of the driver's time-slicing or MPS; it shows that the measurement works.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pynvml  # type: ignore[import-untyped]

from gputile.node.agent.allocation import PIPE_ENV
from gputile.node.agent.mps import PROGRAM, MpsDaemons
from gputile.node.arbiter.accounts import Share
from gputile.node.nvml.nvml_probe import NvmlSession
from tests.fakes.cuda import FakeGpus
from tests.integration.arbiter.process import ArbiterProcess
from tests.localcluster.nosuid import with_pipes
from tests.native.container import ROOT, Gpus, IsolatedContainer

SECONDS: Final = 30.0
WITHIN_S: Final = 600.0
LIMIT_MIB: Final = 2048
QUANTA_MS: Final = (30, 5)
GOAL_P99: Final = 1.2
GOAL_BATCH: Final = 0.6
ALONE: Final = "alone"
SIMULATED_BYTES_PER_US: Final = 1_500_000


@dataclass(frozen=True, slots=True)
class Row:
    """What one way to share gave: the service's latencies in ms, and how often a second the neighbour filled memory."""

    way: str
    median_ms: float
    p99_ms: float
    fills: float


class RealGpu:
    """The machine's first GPU, as the only one that programs see."""

    def __init__(self, uuid: str) -> None:
        self.uuids: Sequence[str] = (uuid,)

    def environment(self) -> Mapping[str, str]:
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def used_by_pid() -> dict[int, int]:
    """Return the bytes of each process on the first GPU, by NVML. A session with NVML must be open."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {each.pid: each.usedGpuMemory or 0 for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}


def rows(gpus: Gpus, seconds: float, scratch: Path) -> Iterator[Row]:
    """Yield a row for each way that there is on these GPUs, that of each alone first. ``scratch`` is a short path."""
    service = ["tests.gpu.latency_loop", str(seconds)]
    batch = ["gputile.node.isolation.probe", "time", str(seconds)]
    direct = {**os.environ, **gpus.environment()}
    (latencies,) = _side_by_side([(service, direct)])
    (fills,) = _side_by_side([(batch, direct)])
    yield _row(ALONE, [latencies, fills])
    yield _row("driver", _side_by_side([(service, direct), (batch, direct)]))
    if not isinstance(gpus, FakeGpus) and shutil.which(PROGRAM):
        yield _row("MPS", asyncio.run(_by_mps(gpus.uuids[0], service, batch, direct, scratch)))
    shares = {"service": {gpus.uuids[0]: Share(9, priority=100)}, "batch": {gpus.uuids[0]: Share(1)}}
    for quantum in QUANTA_MS:
        directory = scratch / str(quantum)
        directory.mkdir()
        with ArbiterProcess(directory) as arbiter:
            environments = [
                IsolatedContainer(path.parent, gpus, {0: LIMIT_MIB}, turn=str(path)).environment()
                for path in arbiter.assign(shares, quantum)
            ]
            yield _row(
                f"turns of {quantum} ms",
                _side_by_side([(service, environments[0]), (batch, environments[1])]),
            )


async def _by_mps(
    uuid: str, service: Sequence[str], batch: Sequence[str], direct: Mapping[str, str], scratch: Path
) -> list[str]:
    daemons = MpsDaemons(with_pipes(scratch) / "mps")
    try:
        daemons.want([(uuid,)])
        await daemons.until_up((uuid,))
        environment = {**direct, PIPE_ENV: str(daemons.pipes((uuid,)))}
        return await asyncio.to_thread(_side_by_side, [(service, environment), (batch, environment)])
    finally:
        await daemons.stop()


def _side_by_side(programs: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> list[str]:
    """Run programs of Python's side by side, from the moment when all are ready; return what each said in the end."""
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        running = []
        for arguments, environment in programs:
            command = [sys.executable, "-m", *arguments]
            process = subprocess.Popen(command, env=environment, text=True, cwd=ROOT, stdin=pipe, stdout=pipe)
            running.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=WITHIN_S)[0] for process in running]
        assert all(process.returncode == 0 for process in running)
    return said


def _row(way: str, said: Sequence[str]) -> Row:
    median, p99 = map(float, said[0].split())
    return Row(way, median, p99, float(said[1]))


def table(found: Sequence[Row]) -> str:
    """Return the rows with what each is by the first, and whether it meets the goal."""
    alone, lines = found[0], [f"{'way':<16}{'P50, ms':>9}{'P99, ms':>9}{'by alone':>10}{'batch by alone':>16}  goal"]
    for row in found:
        latency, batch = row.p99_ms / alone.p99_ms, row.fills / alone.fills
        met = "met" if latency <= GOAL_P99 and batch >= GOAL_BATCH else "missed"
        lines.append(f"{row.way:<16}{row.median_ms:>9.2f}{row.p99_ms:>9.2f}{latency:>10.2f}{batch:>16.0%}  {met}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a service feels of a neighbour on the first GPU.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each measurement takes")
    parser.add_argument("--simulated", action="store_true", help="on a simulated GPU: shows only that it works")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="g-") as directory:
        scratch = Path(directory)
        if arguments.simulated:
            gpus: Gpus = FakeGpus(scratch, copy_bytes_per_us=SIMULATED_BYTES_PER_US)
        else:
            probe = NvmlSession()
            gpus = RealGpu(probe.inventory().gpus[0].uuid)
            probe.close()
        found = list(rows(gpus, arguments.seconds, scratch))
    print(table(found))
    print(
        f"The goal: a P99 of at most {GOAL_P99} times that alone, and {GOAL_BATCH:.0%} of the neighbour's work alone."
    )
    if arguments.simulated:
        print("A simulated GPU tells nothing of the driver's time-slicing or MPS: run this on a GPU.")


if __name__ == "__main__":
    main()
