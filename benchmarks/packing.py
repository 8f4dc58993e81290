"""Compares placement policies on mixes of pods that no workload of the trace contains.

The command is ``python -m benchmarks.packing --trace DIR``. If ``GPUTILE_TRACE`` names the
directory, ``make bench`` compares packing with FGD only. The pods of a mix are drawn from a
workload of the trace, but in other proportions. One or two of these values differ: the part of the
GPU demand that comes from shares of a GPU, from pods with several GPUs, or from pods that accept
only some GPU models, and the number of pods without GPUs. Pods arrive as in ``benchmarks.replay``.
"""

import argparse
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

import numpy as np
import numpy.typing as npt

from benchmarks.replay.engine import replay
from benchmarks.replay.study import POINTS, POLICIES, allocated, make_placer
from benchmarks.replay.trace import (
    Nodes,
    PodShape,
    Workload,
    draw_arrivals,
    read_nodes,
    read_workload,
)
from benchmarks.report import Result

Float64 = npt.NDArray[np.float64]

NAME = "packing"
TRACE = "GPUTILE_TRACE"
"""The environment variable that names the trace's directory."""
LEFT_OUT = (
    f"{NAME}: left out, since it needs a trace: set {TRACE} to its directory "
    f"(docs/guides/replay.md)"
)


@dataclass(frozen=True, slots=True)
class Mix:
    """The pods to draw. A proportion that is None is the same as in ``source``."""

    name: str
    source: str
    shares: float | None = None
    """Part of the GPU demand in shares of a GPU."""
    several: float | None = None
    """Part of the GPU demand in pods of several GPUs."""
    models: float | None = None
    """Part of the GPU demand in pods that accept only some GPU models."""
    without_gpu: float | None = None
    """Number of pods without GPUs for each GPU pod."""


MIXES = (
    Mix("share40", "default", shares=0.4),
    Mix("share80", "gpushare60", shares=0.8),
    Mix("share100", "gpushare60", shares=1.0),
    Mix("multi30", "default", several=0.3),
    Mix("multi50", "default", several=0.5),
    Mix("cpu0", "default", without_gpu=0.0),
    Mix("cpu200", "cpu250", without_gpu=0.3),
    Mix("cpu350", "cpu250", without_gpu=0.54),
    Mix("spec10", "gpuspec20", models=0.1),
    Mix("spec33", "gpuspec20", models=0.33),
    Mix("multi40spec20", "gpuspec20", several=0.4, models=0.2),
    Mix("share60cpu250", "gpushare60", without_gpu=0.38),
)


def draw(mix: Mix, source: Workload, gpus: int) -> Workload:
    """Draw pods that request as many GPUs as the cluster has. A mix always gets the same pods."""
    shapes = [source.shapes[i] for i in source.shape.tolist()]
    demand = np.array([shape.demand for shape in shapes], np.float64)
    weight = (demand > 0).astype(np.float64)
    for wanted, holds in (
        (mix.shares, np.array([_is_share(shape) for shape in shapes])),
        (mix.several, np.array([shape.gpus > 1 for shape in shapes])),
        (mix.models, np.array([bool(shape.models) for shape in shapes])),
    ):
        if wanted is not None:
            part = float((weight * demand)[holds].sum() / (weight * demand).sum())
            weight *= np.where(holds, wanted / part, (1 - wanted) / max(1 - part, 1e-9))
    rng = np.random.default_rng(zlib.crc32(mix.name.encode()))
    chance = weight / weight.sum()
    pods = rng.choice(len(shapes), int(1000 * gpus / float(chance @ demand)), p=chance)
    plain = np.flatnonzero(demand == 0)
    ratio = len(plain) / (len(shapes) - len(plain)) if mix.without_gpu is None else mix.without_gpu
    order = np.concatenate([pods, rng.choice(plain, int(ratio * len(pods)))])
    return Workload(mix.name, source.shapes, source.shape[rng.permutation(order)], None)


def _is_share(shape: PodShape) -> bool:
    return shape.gpus == 1 and shape.milli < 1000


def measure(task: tuple[Path, Mix, str, int]) -> tuple[float, ...]:
    """Return the percentage of allocated GPUs at each of ``POINTS``, or NaN if not reached."""
    trace, mix, policy, seed = task
    nodes: Nodes = read_nodes(trace)
    workload = draw(mix, read_workload(trace, mix.source), int(nodes.gpus.sum()))
    arrivals = draw_arrivals(nodes, workload, seed)
    curve = replay(make_placer(policy, nodes, workload, arrivals, seed), workload, arrivals)
    return tuple(
        math.nan if found is None else found
        for found in (allocated(curve, point) for point in POINTS)
    )


def means(
    trace: Path, mixes: Sequence[Mix], policies: list[str], seeds: list[int]
) -> Iterator[tuple[Mix, list[tuple[float, ...]]]]:
    """Yield each mix as soon as it is measured, with each policy's means over the seeds."""
    tasks = [(trace, mix, policy, seed) for mix in mixes for policy in policies for seed in seeds]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        found = pool.map(measure, tasks)
        for mix in mixes:
            cells = [[next(found) for _ in seeds] for _ in policies]
            yield mix, [tuple(mean(column) for column in zip(*cell, strict=True)) for cell in cells]


def lines(trace: Path, mixes: list[Mix], policies: list[str], seeds: list[int]) -> Iterator[str]:
    """Yield a table with a line for each mix. Yield each line as soon as it is measured."""
    yield f"{'mix':<14}" + "".join(f" {policy:<21}" for policy in policies)
    for mix, found in means(trace, mixes, policies, seeds):
        cells = [" / ".join(f"{value:.2f}" for value in each) for each in found]
        yield f"{mix.name:<14}" + "".join(f" {cell:<21}" for cell in cells)


def run() -> Iterator[Result]:
    """Yield the percentage of GPUs that packing allocates of each mix, compared with FGD."""
    at = POINTS.index(100)
    for mix, (fgd, packing) in means(Path(os.environ[TRACE]), MIXES, ["fgd", "packing"], [1]):
        yield Result(
            NAME, f"{mix.name}: allocated", packing[at], "%", None, packing[at] / fgd[at], "FGD"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=__doc__)
    parser.add_argument("--trace", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--mix", action="append", choices=[mix.name for mix in MIXES], help="default: all"
    )
    parser.add_argument(
        "--policy", action="append", choices=POLICIES, help="default: fgd and packing"
    )
    parser.add_argument("--seed", action="append", type=int, help="default: 1 and 2")
    arguments = parser.parse_args()
    mixes = [mix for mix in MIXES if arguments.mix is None or mix.name in arguments.mix]
    for line in lines(
        arguments.trace, mixes, arguments.policy or ["fgd", "packing"], arguments.seed or [1, 2]
    ):
        print(line, flush=True)


if __name__ == "__main__":
    main()
