"""Replays pods that leave again, by the creation and deletion times of the trace.

The pods of the published trace use one hundredth of the cluster at any time. To load the cluster,
the replay uses several copies of the trace, and shifts each copy cyclically by a random part of its
time span. The creation times are then compressed until the peak demand is ``load`` times the number
of GPUs. The peak demand is computed as if every pod started at its creation. A pod that starts
later still runs for the same time as in the trace.
"""

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.replay.cluster import ReplayCluster
from benchmarks.replay.engine import Placer
from benchmarks.replay.trace import Nodes, TraceError, Workload, check_arrivals

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

TURNOVER = 3.0
"""Total demand of all arrivals, as a multiple of the peak demand."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Pods in the order of arrival, as arrays with an element for each arrival."""

    pods: Int64
    """Index of each pod's shape."""
    created: Float64
    """Arrival in seconds since the start, ascending."""
    runtime: Float64
    """Seconds from start to end."""


@dataclass(frozen=True, slots=True)
class Stay:
    """The result of a replay with departures, up to the arrival of the last pod."""

    workload: str
    policy: str
    seed: int
    load: float
    """Peak demand as a multiple of the cluster's GPUs."""
    pods: int
    gpu_hours_asked: float
    """GPU-hours that the pods would have used by then if each had started on arrival."""
    gpu_hours: float
    waited_pods: int
    wait_seconds: float
    """Mean wait of all pods; a pod that never started counts as waiting until the end."""
    failed_pods: int
    seconds: float = 0.0
    """CPU time of the replay."""


def schedule(nodes: Nodes, workload: Workload, seed: int, load: float) -> Schedule:
    """Draw the order and times of arrivals. ``load`` is the peak demand as a multiple of all GPUs.

    Raises:
        TraceError: the workload has no times, requests no GPU, or needs too many arrivals.
    """
    if workload.lifetime is None:
        raise TraceError(
            f"workload {workload.name}: its file has no creation_time and deletion_time"
        )
    created, deleted = workload.lifetime
    demand = np.array([shape.demand for shape in workload.shapes], np.int64)[workload.shape]
    if demand.sum() == 0:
        raise TraceError(f"workload {workload.name}: no pod asks for a GPU")
    rng = np.random.default_rng(seed)
    check_arrivals(workload, TURNOVER * load * nodes.milli / float(demand.mean()))
    copies = int(np.ceil(TURNOVER * load * nodes.milli / demand.sum()))
    first, span = int(created.min()), int(created.max() - created.min()) + 1
    pods = np.tile(np.arange(len(demand)), copies)
    shift = np.repeat(rng.random(copies) * span, len(demand))
    come = (created[pods] - first + shift) % span
    order = np.argsort(come, kind="stable")
    pods, come = pods[order], come[order]
    runtime = np.maximum(deleted - created, 1)[pods].astype(np.float64)
    return Schedule(
        workload.shape[pods],
        come * _squeeze(come, runtime, demand[pods], load * nodes.milli),
        runtime,
    )


def _squeeze(come: Float64, runtime: Float64, demand: Int64, wanted: float) -> float:
    """Return the factor for creation times at which the peak demand is ``wanted`` milli-GPU."""
    low, high = 1e-9, 1.0
    for _ in range(50):
        middle = float(np.sqrt(low * high))
        low, high = (
            (middle, high) if _peak(come * middle, runtime, demand) > wanted else (low, middle)
        )
    return high


def _peak(created: Float64, runtime: Float64, demand: Int64) -> float:
    times = np.concatenate([created, created + runtime])
    change = np.concatenate([demand, -demand])
    return float(change[np.argsort(times, kind="stable")].cumsum().max())


def replay(placer: Placer, schedule: Schedule) -> Float64:
    """Return the start of each pod in seconds, or infinity for a pod that did not start.

    A pod that fits no node waits. When another pod leaves, waiting pods are tried on its node in
    the order of their arrival. The replay ends when the last pod arrives.
    """
    return _Run(placer, schedule).play()


class _Run:
    def __init__(self, placer: Placer, schedule: Schedule) -> None:
        self._placer, self._schedule = placer, schedule
        shapes = placer.cluster.shapes
        self._started = np.full(len(schedule.pods), np.inf)
        self._running: list[tuple[float, int, int]] = []  # end time, pod, row of its node
        self._waiting: list[deque[int]] = [deque() for _ in shapes]
        self._waits = np.zeros(len(shapes), np.bool_)
        self._room = _FittingShapes(placer.cluster)

    def play(self) -> Float64:
        for pod, now in enumerate(self._schedule.created.tolist()):
            while self._running and self._running[0][0] <= now:
                self._leave()
            index = int(self._schedule.pods[pod])
            self._placer.arrive(str(pod), index)
            # No pod starts before an earlier pod of the same shape.
            if self._waits[index] or not self._start(pod, now):
                self._waiting[index].append(pod)
                self._waits[index] = True
        return self._started

    def _start(self, pod: int, now: float) -> bool:
        row = self._placer.place(str(pod), int(self._schedule.pods[pod]))
        if row is None:
            return False
        self._started[pod] = now
        heapq.heappush(self._running, (now + float(self._schedule.runtime[pod]), pod, row))
        return True

    def _leave(self) -> None:
        now, gone, row = heapq.heappop(self._running)
        self._placer.cluster.release(str(gone))
        # Only this node has more free resources than before, so no other node needs to be tried.
        while len(fitting := np.flatnonzero(self._waits & self._room.fits(row))):
            index = min(fitting.tolist(), key=lambda each: self._waiting[each][0])
            self._start(self._waiting[index].popleft(), now)
            self._waits[index] = bool(self._waiting[index])


class _FittingShapes:
    """Computes which shapes fit a node.

    ``ReplayCluster.fits`` computes the reverse: which nodes fit a shape.
    """

    def __init__(self, cluster: ReplayCluster) -> None:
        self._cluster = cluster
        asked = [(shape.cpu, shape.memory, shape.milli, shape.gpus) for shape in cluster.shapes]
        self._cpu, self._memory, self._milli, self._gpus = np.array(asked, np.int64).T

    def fits(self, row: int) -> npt.NDArray[np.bool_]:
        """Return for each shape whether it fits the node in ``row``."""
        cluster = self._cluster
        gpus = (cluster.free(np.array([row]))[0] >= self._milli[:, None]).sum(axis=1) >= self._gpus
        room = (self._cpu <= cluster.cpu[row]) & (self._memory <= cluster.memory[row])
        fit: npt.NDArray[np.bool_] = cluster.allowed[:, row] & room & gpus
        return fit


def summary(
    workload: Workload, policy: str, seed: int, load: float, schedule: Schedule, started: Float64
) -> Stay:
    """Summarise a replay up to the arrival of the last pod. ``started`` is the result of
    ``replay``.
    """
    end = float(schedule.created[-1])
    gpus = np.array([shape.demand for shape in workload.shapes], np.int64)[schedule.pods] / 1000
    asked = np.minimum(end - schedule.created, schedule.runtime)
    ran = np.clip(end - started, 0.0, schedule.runtime)
    waited = np.minimum(started, end) - schedule.created
    return Stay(
        workload.name,
        policy,
        seed,
        load,
        len(schedule.pods),
        round(float((gpus * asked).sum()) / 3600, 1),
        round(float((gpus * ran).sum()) / 3600, 1),
        int((np.isfinite(started) & (waited > 0)).sum()),
        round(float(waited.mean()), 1),
        int(np.isinf(started).sum()),
    )
