"""Time on GPUs under the arbiter: containers whose kernels need two GPUs at once, beside one on a single GPU.

Simulated GPUs, the library's client and the arbiter's process. A kernel over both GPUs keeps the one that it has
begun on until it has the other too.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.fakes.cuda import FakeGpus
from tests.integration.arbiter.busy import Busy, measure
from tests.integration.arbiter.process import ArbiterProcess

from benchmarks.report import Result
from gputile.node.arbiter.agent_messages import GpuClaim

NAME: Final = "turns"
KERNEL_NS: Final = 5_000_000
SECONDS: Final = 10.0


def run() -> Iterator[Result]:
    """Yield what each of three containers gets done, beside what the first does alone."""
    with tempfile.TemporaryDirectory(prefix="gputile-") as directory:
        gpus = FakeGpus(Path(directory), mib=(16384, 16384))
        both = [GpuClaim(uuid) for uuid in gpus.uuids]
        with ArbiterProcess(Path(directory)) as arbiter:
            paths = arbiter.assign({"x": both, "y": both, "z": both[:1]})
            (alone,) = _rates(gpus, paths[:1])
            names = ("X, on GPUs A and B", "Y, on GPUs A and B", "Z, on GPU A")
            for name, rate in zip(names, _rates(gpus, paths), strict=True):
                yield Result(
                    NAME,
                    f"kernels a second of {name}",
                    rate,
                    "1/s",
                    ratio=rate / (alone / 3),
                    against="a third of X alone",
                )


def _rates(gpus: FakeGpus, paths: Sequence[Path]) -> list[float]:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(Busy(gpus, path, 600.0, KERNEL_NS, "joint", threads=2, indices=(0, 1)))
            for path in paths[:2]
        ]
        processes += [stack.enter_context(Busy(gpus, path, 600.0, KERNEL_NS, "sync")) for path in paths[2:]]
        for process in processes:
            process.begin()
        measure(processes, 2_000_000_000)
        begin, before = time.monotonic(), [process.busy() for process in processes]
        time.sleep(SECONDS)
        seconds = time.monotonic() - begin
        return [(p.busy() - had) / KERNEL_NS / seconds for p, had in zip(processes, before, strict=True)]
