"""Compares preemption with the best choice on small clusters, and with kube-scheduler on a trace.

On small clusters, all algorithms choose victims in the same state of the cluster. The trace
(``GPUTILE_TRACE``) is replayed on one cluster with gputile and on another with kube-scheduler. A
pod that does not fit preempts pods of lower priority, which start again as soon as they fit. The
trace's QoS classes are used as priorities: from low to high, BE, Burstable, LS and Guaranteed.
"""

import csv
import heapq
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.packing import TRACE
from benchmarks.replay.cluster import ReplayCluster
from benchmarks.replay.departures import schedule
from benchmarks.replay.trace import Nodes, PodShape, Workload, read_nodes, read_workload
from benchmarks.report import Result
from benchmarks.victim_peers import Asked, Held, OpenNode, best_victims, scheduler_victims
from gputile.api.core import Node, NodeStatus, ObjectMeta, Pod
from gputile.api.well_known import GPU_MEMORY
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.placement.vectorized import UNFIT
from gputile.core.scheduling.eviction_rules import EvictionFacts, EvictionRules
from gputile.core.scheduling.gang_plan import GangCandidate
from gputile.core.scheduling.gang_victims import VictimSearchInput, choose_gang_victims
from gputile.core.scheduling.placement_engine import Decision
from gputile.core.scheduling.victim_choice import Preemptor, VictimSearch

NAME = "preemption"
CASES = 1000  # small clusters for each kind of request
_PRIORITY = {"BE": 0, "Burstable": 1, "LS": 2, "Guaranteed": 3}
_SIZES = (100, 200, 250, 300, 400, 500, 600, 700, 1000)
_NODES, _GPUS = 3, 4
_EVERY = 12  # every twelfth node of the trace is used
LOAD = 1.3
WORKLOADS = ("default", "gpushare60")
_START = 1_000_000.0  # seconds; 0 would mean an unknown start


class Stage:
    """A cluster with pods of different priorities, on the real ledger and engine."""

    def __init__(self, nodes: Nodes, shapes: Sequence[PodShape]) -> None:
        self.cluster = ReplayCluster(nodes, shapes, np.arange(len(nodes.gpus)))
        self.engine, self.ledger = self.cluster.engine, self.cluster.ledger
        self.facts: dict[str, EvictionFacts] = {}
        self.pods: dict[str, Pod] = {}
        self.held: dict[int, dict[str, Held]] = {row: {} for row in range(len(nodes.gpus))}
        self._row: dict[str, int] = {}

    def bind(
        self,
        uid: str,
        index: int,
        row: int,
        priority: int,
        started: float,
        gpus: Sequence[int] = (),
    ) -> None:
        """Bind a pod on ``gpus`` of a node. If ``gpus`` is empty, the engine chooses the GPUs."""
        request, info = self.cluster.request(index), self.ledger.node_info(row)
        assert info is not None
        pod = self.cluster.pod(uid, index, row)
        pod = msgspec.structs.replace(
            pod, spec=msgspec.structs.replace(pod.spec, priority=priority)
        )
        if request is not None:
            found = self.engine.decide(request, info.name, 0)
            if gpus:
                found = self.engine.decision(
                    request, info, [info.inventory.gpus[i] for i in gpus], 0
                )
            assert isinstance(found, Decision)
            meta = msgspec.structs.replace(pod.metadata, annotations=found.annotations(pod))
            pod = msgspec.structs.replace(pod, metadata=meta)
            shares = tuple((gpu.index, self.cluster.shapes[index].milli) for gpu in found.gpus)
            self.held[row][uid] = Held(uid, shares, priority, started)
            self.facts[uid] = EvictionFacts("default", uid, started_at=started)
        self.ledger.apply_pod(pod)
        self.pods[uid], self._row[uid] = pod, row

    def end(self, uid: str) -> Held | None:
        """Remove a pod. Return its record, or None if it had no GPUs."""
        self.cluster.release(uid)
        self.facts.pop(uid, None)
        del self.pods[uid]
        return self.held[self._row.pop(uid)].pop(uid, None)

    def row_for(self, index: int) -> int | None:
        """Return the row of the best node that the pod fits, or None if it fits no node."""
        request, shape = self.cluster.request(index), self.cluster.shapes[index]
        host = HostResources(shape.cpu, shape.memory)
        scores = self.engine.scores(request.shape if request is not None else None, host)[
            : len(self.cluster.gpus)
        ]
        scores = np.where(self.cluster.admits(index), scores, UNFIT)
        row = int(scores.argmax())
        return None if scores[row] == UNFIT else row

    def open_nodes(self, index: int) -> dict[str, OpenNode]:
        """Return the nodes on which a pod lacks nothing except GPUs."""
        found = {}
        for row in np.flatnonzero(self.cluster.admits(index)).tolist():
            info, free = self.ledger.node_info(row), self.cluster.free(np.array([row]))[0]
            assert info is not None
            gpus = len(info.inventory.gpus)
            found[info.name] = OpenNode(tuple(free[:gpus].tolist()), tuple(self.held[row].values()))
        return found

    def rules(self) -> EvictionRules:
        """Return rules that allow every eviction."""
        return EvictionRules(self.facts, {})


@dataclass(frozen=True, slots=True)
class Choice:
    """The row of a node, the GPUs, and the UIDs of the victims.

    The GPUs are empty if the engine chooses them.
    """

    row: int
    victims: tuple[str, ...]
    gpus: tuple[int, ...] = ()


Chooser = Callable[[Stage, int, int, float], Choice | None]


def gputile_choice(stage: Stage, index: int, priority: int, now: float) -> Choice | None:
    """Choose victims as gputile's extender does."""
    request = stage.cluster.request(index)
    assert request is not None
    preemptor = Preemptor("asking", request, priority, now)
    search = VictimSearch(stage.engine, preemptor, stage.rules())
    choice = min(
        filter(None, map(search.on_node, stage.open_nodes(index))),
        key=lambda each: each.loss,
        default=None,
    )
    if choice is None:
        return None
    return Choice(
        stage.ledger.row_of[choice.node], choice.evicted, tuple(gpu.index for gpu in choice.gpus)
    )


def scheduler_choice(stage: Stage, index: int, priority: int, now: float) -> Choice | None:
    """Choose victims as kube-scheduler does."""
    del now  # kube-scheduler only compares start times
    shape = stage.cluster.shapes[index]
    found = scheduler_victims(stage.open_nodes(index), Asked(shape.gpus, shape.milli, priority))
    return (
        None
        if found is None
        else Choice(stage.ledger.row_of[found[0]], tuple(each.uid for each in found[1]))
    )


# -- small clusters


@dataclass(slots=True)
class Sums:
    """Sums over choices.

    ``lost`` is in GPU-seconds. ``best`` counts optimal choices, and ``missed`` counts cases in
    which enough victims existed but were not found.
    """

    choices: int = 0
    missed: int = 0
    evictions: int = 0
    lost: float = 0.0
    best: int = 0

    def add(self, victims: Sequence[Held], now: float, best: Sequence[Held]) -> None:
        """Add the victims of one choice. ``best`` are the victims of the best choice."""
        lost = sum(each.lost(now) for each in victims)
        self.choices += 1
        self.evictions += len(victims)
        self.lost += lost
        least = sum(each.lost(now) for each in best)
        self.best += _cost(victims) == _cost(best) and lost <= least + 1.0


def _cost(victims: Sequence[Held]) -> tuple[int, int]:
    return max((each.priority for each in victims), default=-1), len(victims)


def small_stage(rng: random.Random) -> Stage:
    """Return a cluster that is nearly full of pods of priorities 0 to 2."""
    count = np.full(_NODES, 10**6)
    nodes = Nodes(count, count, np.full(_NODES, _GPUS), ("T4",) * _NODES)
    shapes = [PodShape(1, 1, 1, milli, frozenset()) for milli in _SIZES]
    stage = Stage(
        nodes, [*shapes, *(PodShape(1, 1, gpus, 1000, frozenset()) for gpus in range(2, _GPUS + 1))]
    )
    for row in range(_NODES):
        for gpu in range(_GPUS):
            left = 1000
            while True:
                index = rng.randrange(len(_SIZES))
                if _SIZES[index] > left:
                    break
                left -= _SIZES[index]
                started = _START - rng.lognormvariate(9, 1.5)
                stage.bind(f"{row}-{gpu}-{left}", index, row, rng.randrange(3), started, (gpu,))
    return stage


def compare_single(cases: int) -> dict[str, Sums]:
    """Return the sums of gputile, kube-scheduler and the integer program for single pods."""
    found = {"gputile": Sums(), "kube-scheduler": Sums(), "best": Sums()}
    for seed in range(cases):
        rng = random.Random(seed)
        stage, priority = small_stage(rng), rng.randrange(1, 4)
        index = rng.randrange(len(stage.cluster.shapes))
        if stage.row_for(index) is not None:
            continue
        shape, nodes = stage.cluster.shapes[index], stage.open_nodes(index)
        best = best_victims(nodes, Asked(shape.gpus, shape.milli, priority), _START)
        held = {uid: each for on_node in stage.held.values() for uid, each in on_node.items()}
        choices = {"gputile": gputile_choice, "kube-scheduler": scheduler_choice}
        for name, choose in choices.items():
            choice = choose(stage, index, priority, _START)
            assert (choice is None) == (best is None), (
                "one finds victims where the other finds none"
            )
            if choice is not None and best is not None:
                found[name].add([held[uid] for uid in choice.victims], _START, best)
        if best is not None:
            found["best"].add(best, _START, best)
    return found


def compare_gangs(cases: int) -> dict[str, Sums]:
    """Return the sums of gputile and the integer program for gangs of two to five equal pods."""
    found = {"gputile": Sums(), "best": Sums()}
    for seed in range(cases):
        rng = random.Random(seed)
        stage, priority, pods = small_stage(rng), rng.randrange(1, 4), rng.randrange(2, 6)
        index = rng.randrange(len(stage.cluster.shapes))
        shape, nodes = stage.cluster.shapes[index], stage.open_nodes(index)
        best = best_victims(nodes, Asked(shape.gpus, shape.milli, priority, pods), _START)
        if best is not None and not best:
            continue  # the gang fits without evictions
        amounts = {"cpu": "9999", "memory": "9999Ti", "pods": "9999", GPU_MEMORY: "999999"}
        objects = [
            Node(ObjectMeta(name=name), status=NodeStatus(allocatable=dict(amounts)))
            for name in nodes
        ]
        predicates = Predicates(objects)
        for pod in stage.pods.values():
            predicates.place(pod, pod.spec.node_name)
        ground = VictimSearchInput(stage.engine, predicates, Predicates(objects), stage.pods)
        members = [stage.cluster.pod(f"g{i}", index) for i in range(pods)]
        members = [
            msgspec.structs.replace(
                each, spec=msgspec.structs.replace(each.spec, priority=priority)
            )
            for each in members
        ]
        candidates = [GangCandidate(each, stage.cluster.request(index)) for each in members]
        held = {uid: each for on_node in stage.held.values() for uid, each in on_node.items()}
        choice = choose_gang_victims(candidates, pods, ground, stage.rules(), int(_START * 1e9))
        assert choice is None or best is not None, "what the program cannot do, nobody can"
        if choice is not None and best is not None:
            found["gputile"].add([held[uid] for uid in choice.evicted], _START, best)
            found["best"].add(best, _START, best)
        found["gputile"].missed += choice is None and best is not None
    return found


# -- a trace


@dataclass(slots=True)
class Preempted:
    """The sums of a replay. ``lost`` is in GPU-seconds."""

    evictions: int = 0
    lost: float = 0.0
    preemptions: int = 0


@dataclass(slots=True)
class _Replay:
    """A cluster on which pods arrive, end and preempt others.

    ``kinds`` contains the index of each pod's shape, and ``runtime`` its run time in seconds.
    """

    stage: Stage
    priorities: Sequence[int]
    choose: Chooser
    kinds: Sequence[int]
    runtime: Sequence[float]
    result: Preempted = field(default_factory=Preempted)
    # The end time and the number of each running pod, and how often the pod has started.
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)

    def play(self, created: Sequence[float]) -> Preempted:
        """Replay the pods. ``created`` are their creation times in seconds, in ascending order."""
        for pod, came in enumerate(created):
            now, ended = _START + came, False
            while self.ends and self.ends[0][0] <= now:
                _, gone, start = heapq.heappop(self.ends)
                if self.starts[gone] == start:
                    self.stage.end(str(gone))
                    ended = True
            if ended:
                self._again(now)
            if not self._start(pod, now) and not self._preempt(pod, now):
                self.waiting.add(pod)
        return self.result

    def _start(self, pod: int, now: float, choice: Choice | None = None) -> bool:
        kind = self.kinds[pod]
        row = choice.row if choice is not None else self.stage.row_for(kind)
        if row is None:
            return False
        self.stage.bind(
            str(pod),
            kind,
            row,
            self.priorities[kind],
            now,
            choice.gpus if choice is not None else (),
        )
        self.starts[pod] = self.starts.get(pod, 0) + 1
        heapq.heappush(self.ends, (now + self.runtime[pod], pod, self.starts[pod]))
        return True

    def _again(self, now: float) -> None:
        """Start the pending pods that fit now, in the order of their priority."""
        full = set[int]()
        for pod in sorted(
            self.waiting, key=lambda each: (-self.priorities[self.kinds[each]], each)
        ):
            if self.kinds[pod] in full:
                continue
            if self._start(pod, now):
                self.waiting.remove(pod)
            else:
                full.add(self.kinds[pod])

    def _preempt(self, pod: int, now: float) -> bool:
        kind = self.kinds[pod]
        if not self.stage.cluster.shapes[kind].gpus or not self.priorities[kind]:
            return False
        choice = self.choose(self.stage, kind, self.priorities[kind], now)
        if choice is None:
            return False
        self.result.preemptions += 1
        for uid in choice.victims:
            held = self.stage.end(uid)
            assert held is not None
            self.result.evictions += 1
            self.result.lost += held.lost(now)
            self.starts[int(uid)] += 1  # so that the end planned for this start is ignored
            self.waiting.add(int(uid))
        return self._start(pod, now, choice)


def with_priorities(trace: Path, name: str) -> tuple[Workload, list[int]]:
    """Return a workload in which pods of different priority have different shapes.

    Also return the priority of each shape.
    """
    workload = read_workload(trace, name)
    with (trace / f"openb_pod_list_{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda each: each["name"])
    classes = [_PRIORITY.get(each["qos"], 0) for each in rows]
    pairs = list(zip(workload.shape.tolist(), classes, strict=True))
    kinds = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    shapes = tuple(workload.shapes[shape] for shape, _ in kinds)
    numbers = np.array([kinds[pair] for pair in pairs])
    return Workload(name, shapes, numbers, workload.lifetime), [priority for _, priority in kinds]


def replay_trace(trace: Path, name: str, seed: int) -> dict[str, Preempted]:
    """Return the sums of both schedulers on every ``_EVERY``-th node of the trace.

    "same states" contains the evictions that kube-scheduler would have chosen in each state in
    which gputile evicted pods.
    """
    every, (workload, priorities) = read_nodes(trace), with_priorities(trace, name)
    some = slice(None, None, _EVERY)
    nodes = Nodes(every.cpu[some], every.memory[some], every.gpus[some], tuple(every.models[some]))
    plan, same = schedule(nodes, workload, seed, LOAD), Preempted()

    def both(stage: Stage, index: int, priority: int, now: float) -> Choice | None:
        choice, other = (
            choose(stage, index, priority, now) for choose in (gputile_choice, scheduler_choice)
        )
        if choice is not None and other is not None:
            same.preemptions += 1
            same.evictions += len(other.victims)
            same.lost += sum(stage.held[other.row][uid].lost(now) for uid in other.victims)
        return choice

    found = {"same states": same}
    for who, choose in (("gputile", both), ("kube-scheduler", scheduler_choice)):
        replay = _Replay(
            Stage(nodes, workload.shapes),
            priorities,
            choose,
            plan.pods.tolist(),
            plan.runtime.tolist(),
        )
        found[who] = replay.play(plan.created.tolist())
    return found


def _beside(
    what: str, mine: Sums | Preempted, other: Sums | Preempted, against: str
) -> Iterator[Result]:
    pods, lost = mine.evictions / max(1, other.evictions), mine.lost / max(1.0, other.lost)
    yield Result(NAME, f"{what}: pods evicted", mine.evictions, "", None, pods, against)
    yield Result(NAME, f"{what}: GPU-hours lost", mine.lost / 3600, "h", None, lost, against)


def run() -> Iterator[Result]:
    """Yield evictions and lost GPU-hours, compared with the other algorithms."""
    single, gangs = compare_single(CASES), compare_gangs(CASES)
    for who in ("gputile", "kube-scheduler"):
        yield from _beside(f"small clusters, {who}", single[who], single["best"], "the best")
    yield from _beside("small clusters, gangs", gangs["gputile"], gangs["best"], "the best")
    compared = {
        "gputile": single["gputile"],
        "kube-scheduler": single["kube-scheduler"],
        "gangs": gangs["gputile"],
    }
    for who, sums in compared.items():
        part = 100 * sums.best / sums.choices
        yield Result(NAME, f"small clusters, {who}: choices as good as the best", part, "%")
    yield Result(
        NAME, "small clusters, gangs: found no victims that there are", gangs["gputile"].missed, ""
    )
    for name in WORKLOADS if os.environ.get(TRACE) else ():
        found = replay_trace(Path(os.environ[TRACE]), name, 1)
        for peer in ("same states", "kube-scheduler"):
            against = "kube-scheduler's" + (", same states" if peer == "same states" else "")
            yield from _beside(f"trace {name}", found["gputile"], found[peer], against)
