"""Defines the results of benchmarks, measures CPU time and memory, and prints tables."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True, slots=True)
class Result:
    """One measured value.

    ``ratio`` is relative to the value named ``against`` of the same run. ``target`` is a maximum.
    """

    benchmark: str
    what: str
    value: float
    unit: str
    target: float | None = None
    ratio: float | None = None
    against: str = ""


@dataclass(frozen=True, slots=True)
class Times:
    """The CPU seconds of repeated runs."""

    seconds: tuple[float, ...]

    def at(self, fraction: float) -> float:
        """Return the time that the given fraction of the runs does not exceed."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]

    @property
    def median(self) -> float:
        """The upper median of the runs."""
        return self.at(0.5)


def cpu_times(run: Callable[[int], object], count: int, *, warm_up: int = 3) -> Times:
    """Return the CPU time of ``count`` runs. ``run`` is called with the number of the run."""
    seconds = []
    with without_collector():
        for i in range(warm_up + count):
            started = time.process_time_ns()
            run(i)
            seconds.append((time.process_time_ns() - started) / 1e9)
    return Times(tuple(seconds[warm_up:]))


@contextmanager
def without_collector() -> Iterator[None]:
    """Exclude existing objects from garbage collections, as the extender does after its start."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def resident_mib(pid: int | None = None) -> float:
    """Return the resident memory of a process in MiB. Without ``pid``, measure this process."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def as_table(results: list[Result]) -> str:
    """Return the results as a table."""
    lines = [f"{'benchmark':<10} {'what':<58} {'value':>10} {'':<4} {'target':>8}  compared with"]
    for r in results:
        target = "" if r.target is None else f"< {r.target:g}"
        ratio = "" if r.ratio is None else f"{r.ratio:.3g} x {r.against}"
        lines.append(
            f"{r.benchmark:<10} {r.what:<58} {r.value:>10.3f} {r.unit:<4} {target:>8}  {ratio}"
        )
    return "\n".join(lines)


def as_json(results: list[Result]) -> str:
    """Return the results as a JSON list."""
    return msgspec.json.format(
        msgspec.json.encode([asdict(result) for result in results]), indent=2
    ).decode()
