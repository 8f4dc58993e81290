"""The state of a cluster during a replay, as a struct of arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gputile.tools.replay.trace import Nodes, PodShape

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(slots=True)
class ReplayCluster:
    """What is free on each node. Rows are in the order in which nodes win ties: row 0 first.

    ``cpu`` and ``memory`` are milli-CPU and MiB, shape [nodes]; ``free`` is milli-GPU, shape [nodes, GPUs of the
    largest node], 0 for GPUs that a node does not have.
    """

    cpu: Int64
    memory: Int64
    free: Int64
    gpus: Int64
    models: tuple[str, ...]

    @classmethod
    def empty(cls, nodes: Nodes, rank: Int64) -> "ReplayCluster":
        """Return the cluster with nothing on it."""
        order = np.argsort(rank, kind="stable")
        gpus = nodes.gpus[order]
        free = np.where(np.arange(int(gpus.max(initial=0))) < gpus[:, None], 1000, 0)
        return cls(nodes.cpu[order], nodes.memory[order], free, gpus, tuple(nodes.models[i] for i in order.tolist()))

    def of_models(self, models: frozenset[str]) -> Bool:
        """Return which nodes have GPUs of one of ``models``; any will do when it is empty. Shape [nodes]."""
        return np.array([not models or model in models for model in self.models], np.bool_)

    def fits(self, shape: PodShape, rows: Int64) -> Bool:
        """Return on which of ``rows`` the pod fits, the model aside. Shape [rows]."""
        fit: Bool = (self.cpu[rows] >= shape.cpu) & (self.memory[rows] >= shape.memory)
        if shape.gpus:
            fit &= (self.free[rows] >= shape.milli).sum(axis=1) >= shape.gpus
        return fit

    def place(self, row: int, shape: PodShape, first: int) -> tuple[int, ...]:
        """Take what the pod asks for from a node; return the GPUs, of which a pod with one GPU gets ``first``."""
        self.cpu[row] -= shape.cpu
        self.memory[row] -= shape.memory
        if shape.gpus == 0:
            return ()
        if shape.gpus == 1:
            gpus: tuple[int, ...] = (first,)
        else:
            gpus = tuple(np.flatnonzero(self.free[row] >= shape.milli)[: shape.gpus].tolist())
        for gpu in gpus:
            self.free[row, gpu] -= shape.milli
        return gpus

    def release(self, row: int, shape: PodShape, gpus: tuple[int, ...]) -> None:
        """Give back what ``place`` took."""
        self.cpu[row] += shape.cpu
        self.memory[row] += shape.memory
        for gpu in gpus:
            self.free[row, gpu] += shape.milli


def after(free: Int64, shape: PodShape) -> tuple[Int64, Bool]:
    """Return what is free after each way to place the pod, and which of the ways are possible.

    ``free`` has the shape [nodes, GPUs]. A pod with one GPU has a way for every GPU: [nodes, ways, GPUs] and [nodes,
    ways].
    Others have one way: none of the GPUs, or the first ones that are free enough.
    """
    if shape.gpus == 1:
        ways = free[:, None, :] - shape.milli * np.eye(free.shape[1], dtype=np.int64)
        return ways, free >= shape.milli
    if shape.gpus == 0:
        return free[:, None, :], np.ones((len(free), 1), np.bool_)
    ready = free >= shape.milli
    taken = ready & (ready.cumsum(axis=1) <= shape.gpus)
    return (free - shape.milli * taken)[:, None, :], np.ones((len(free), 1), np.bool_)
