"""What a benchmark reports, how time is taken, and how it is printed."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True, slots=True)
class Result:
    """One number. ``ratio`` compares it with ``against``, measured in the same run; ``target`` is what to reach."""

    benchmark: str
    what: str
    value: float
    unit: str
    target: float | None = None
    ratio: float | None = None
    against: str = ""


@dataclass(frozen=True, slots=True)
class Times:
    """CPU seconds of many runs of one thing."""

    seconds: tuple[float, ...]

    def at(self, fraction: float) -> float:
        """Return the time that this fraction of the runs stays under."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]

    @property
    def median(self) -> float:
        """The middle one."""
        return self.at(0.5)


def cpu_times(run: Callable[[int], object], count: int, *, warm_up: int = 3) -> Times:
    """Return the CPU time of ``count`` runs; ``run`` gets the number of the run."""
    seconds = []
    with without_collector():
        for i in range(warm_up + count):
            started = time.process_time_ns()
            run(i)
            seconds.append((time.process_time_ns() - started) / 1e9)
    return Times(tuple(seconds[warm_up:]))


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep the cyclic garbage collector out, as the extender does with what its first list brought."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def resident_mib() -> float:
    """Return the memory that this process has in RAM now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def as_table(results: list[Result]) -> str:
    """Return the results for people."""
    lines = [f"{'benchmark':<10} {'what':<58} {'value':>10} {'':<4} {'target':>8}  compared with"]
    for r in results:
        target = "" if r.target is None else f"< {r.target:g}"
        ratio = "" if r.ratio is None else f"{r.ratio:.3g} x {r.against}"
        lines.append(f"{r.benchmark:<10} {r.what:<58} {r.value:>10.3f} {r.unit:<4} {target:>8}  {ratio}")
    return "\n".join(lines)


def as_json(results: list[Result]) -> str:
    """Return the results for programs."""
    return msgspec.json.format(msgspec.json.encode([asdict(result) for result in results]), indent=2).decode()
