"""Computes how much of each workload the best placement could allocate, by a linear program.

The command is ``python -m benchmarks.bound --trace DIR``. The linear program knows all pods in
advance, and serves the same fraction theta of the pods of every shape:

    maximise theta, subject to the following constraints for the nodes g of each GPU model
      sum_g x_sg = theta D_s                    pods of shape s, on nodes of an accepted model
      sum_s k_s x_sg <= sum_p a_pk y_pg         GPUs, which patterns p cut into shares
      sum_p y_pg <= N_g                         the number of GPUs
      sum_s c_s x_sg <= C_g                     CPU, and the same for memory

Here x_sg is the number of pods of shape s on the nodes g, and y_pg is the number of GPUs of these
nodes that are cut by pattern p. The pattern cuts a GPU into a_pk shares of size k. A pod of shape s
needs k_s shares of one size, each on a different GPU. D_s is the demand for shape s, scaled to the
number of GPUs in the cluster. Patterns are generated when they are needed (Gilmore and Gomory,
1961).

The linear program does not require that the GPUs and the CPU of a pod are on the same node, so the
true optimum is lower. The result is no strict bound for a policy that refuses large pods more often
than small pods, because such a policy may allocate more.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import highspy
import numpy as np
import numpy.typing as npt

from benchmarks.replay.trace import Nodes, Workload, read_nodes, read_workload, workloads
from gputile.core.placement.prices import WHOLE_GPU, best_pattern

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

ROUNDS, EPSILON = 200, 1e-7


class Relaxation:
    """The linear program of one workload on one cluster.

    Rows and columns are numbered in the order in which they were added.
    """

    def __init__(self, nodes: Nodes, workload: Workload) -> None:
        self._model = highspy.Highs()  # type: ignore[no-untyped-call]
        self._model.setOptionValue("output_flag", False)
        self._model.changeObjectiveSense(highspy.ObjSense.kMaximize)
        counts = Counter(workload.shape.tolist())
        shapes = {workload.shapes[i]: float(n) for i, n in counts.items()}
        scale = (
            int(nodes.gpus.sum()) * WHOLE_GPU / sum(shape.demand * n for shape, n in shapes.items())
        )
        self._demand = {shape: n * scale for shape, n in shapes.items()}
        self.sizes = np.array(sorted({shape.milli for shape in shapes if shape.gpus}), np.int64)
        self._rows = 0
        self._served = {shape: self._row(0.0, 0.0) for shape in shapes}
        theta = [(row, -self._demand[shape]) for shape, row in self._served.items()]
        self._column(1.0, theta, most=1.0)
        models = np.array(nodes.models)
        self._groups = [
            self._group(nodes, models == model, str(model)) for model in sorted(set(nodes.models))
        ]

    def solve(self) -> float:
        """Add patterns until no pattern improves theta, for at most ``ROUNDS`` rounds. Return
        theta.
        """
        for _ in range(ROUNDS):
            self._model.run()
            duals = np.array(self._model.getSolution().row_dual)
            if not sum(self._add_pattern(rows, gpu, duals) for rows, gpu in self._groups):
                break
        return float(self._model.getInfo().objective_function_value)

    def _group(
        self, nodes: Nodes, those: npt.NDArray[np.bool_], model: str
    ) -> tuple[list[int], int]:
        """Add the nodes of one GPU model.

        Return the rows of the share sizes, and the row of the GPUs.
        """
        sizes = [self._row(-highspy.kHighsInf, 0.0) for _ in self.sizes]
        gpu, cpu, memory = (
            self._row(-highspy.kHighsInf, float(have[those].sum()))
            for have in (nodes.gpus, nodes.cpu, nodes.memory)
        )
        for shape, row in self._served.items():
            if shape.gpus and shape.models and model not in shape.models:
                continue
            entries = [(row, 1.0), (cpu, float(shape.cpu)), (memory, float(shape.memory))]
            if shape.gpus:
                entries.append(
                    (sizes[int(np.searchsorted(self.sizes, shape.milli))], float(shape.gpus))
                )
            self._column(0.0, entries)
        for alike in np.diag(WHOLE_GPU // self.sizes):
            self._cut(sizes, gpu, alike)
        return sizes, gpu

    def _add_pattern(self, rows: Sequence[int], gpu: int, duals: Float64) -> bool:
        """Add the pattern with the highest value, if this value exceeds the price of a GPU.

        ``duals`` contains the prices. Return whether a pattern was added.
        """
        worth = np.maximum(duals[rows], 0.0)
        pattern = best_pattern(self.sizes, worth)
        if float(pattern @ worth) <= max(0.0, float(duals[gpu])) + EPSILON:
            return False
        self._cut(rows, gpu, pattern)
        return True

    def _cut(self, rows: Sequence[int], gpu: int, pattern: Int64) -> None:
        """Add a column for GPUs that are cut into ``pattern[size]`` shares of each size."""
        used = [(rows[i], -float(pattern[i])) for i in np.flatnonzero(pattern).tolist()]
        self._column(0.0, [(gpu, 1.0), *used])

    def _row(self, least: float, most: float) -> int:
        self._model.addRow(least, most, 0, np.zeros(0, np.int32), np.zeros(0))
        self._rows += 1
        return self._rows - 1

    def _column(
        self, worth: float, entries: Sequence[tuple[int, float]], most: float = highspy.kHighsInf
    ) -> None:
        rows = np.array([row for row, _ in entries], np.int32)
        self._model.addCol(
            worth, 0.0, most, len(entries), rows, np.array([value for _, value in entries])
        )


def bounds(trace: Path, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield each workload, and the percentage of GPUs that can be allocated at 100 % demand."""
    nodes = read_nodes(trace)
    for name in names:
        yield name, 100 * Relaxation(nodes, read_workload(trace, name)).solve()


def main() -> None:
    """Print a line for each workload."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bound", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--trace", type=Path, required=True, metavar="DIR")
    parser.add_argument("--workload", action="append", help="default: all of the trace")
    arguments = parser.parse_args()
    for name, percent in bounds(arguments.trace, arguments.workload or workloads(arguments.trace)):
        print(f"{name:<14} {percent:.2f}", flush=True)


if __name__ == "__main__":
    main()
