"""Chooses victims by kube-scheduler's algorithm, and optimally by an integer program.

kube-scheduler (``DefaultPreemption``) removes all pods of lower priority from a node. It then adds
back the pods that can stay, in descending order of priority. It compares nodes by the highest
priority of the victims, the sum of their priorities, their number, and the latest start. In this
module, unlike in kube-scheduler, the filters also check GPUs. There are no PodDisruptionBudgets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

_OFFSET = 2**31  # kube-scheduler adds this to each priority, so that more victims have a larger sum


@dataclass(frozen=True, slots=True)
class Held:
    """A running pod.

    Its fields are (index, thousandths) of each of its GPUs, its priority, and its start in seconds.
    """

    uid: str
    shares: tuple[tuple[int, int], ...]
    priority: int
    started: float

    def lost(self, now: float) -> float:
        """Return the GPU-seconds that are lost if the pod is evicted now."""
        return (now - self.started) * sum(milli for _, milli in self.shares) / 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of ``pods`` equal pods.

    Each pod needs ``milli`` thousandths of each of ``gpus`` GPUs of one node.
    """

    gpus: int
    milli: int
    priority: int
    pods: int = 1


@dataclass(frozen=True, slots=True)
class OpenNode:
    """A node on which the pod lacks nothing except GPUs.

    Its fields are the free thousandths of each GPU, and the running pods.
    """

    free: tuple[int, ...]
    held: tuple[Held, ...]


def scheduler_victims(nodes: Mapping[str, OpenNode], asked: Asked) -> tuple[str, list[Held]] | None:
    """Return the node that kube-scheduler chooses for one pod, and its victims.

    Return None if even all possible victims are not enough.
    """
    found = [
        (name, victims)
        for name, node in nodes.items()
        if (victims := _on_node(node, asked)) is not None
    ]
    return min(found, key=lambda each: _order(each[1]), default=None)


def _order(victims: Sequence[Held]) -> tuple[float, ...]:
    highest = max((each.priority for each in victims), default=-_OFFSET)
    started = min((each.started for each in victims if each.priority == highest), default=0.0)
    return highest, sum(each.priority + _OFFSET for each in victims), len(victims), -started


def _on_node(node: OpenNode, asked: Asked) -> list[Held] | None:
    free = list(node.free)
    lower = [each for each in node.held if each.priority < asked.priority]

    def count(pod: Held, sign: int) -> None:
        for gpu, milli in pod.shares:
            free[gpu] += sign * milli

    def fits() -> bool:
        return sum(each >= asked.milli for each in free) >= asked.gpus

    for pod in lower:
        count(pod, 1)
    if not lower or not fits():
        return None
    victims = []
    for pod in sorted(lower, key=lambda each: (-each.priority, each.started)):
        count(pod, -1)
        if not fits():
            count(pod, 1)
            victims.append(pod)
    return victims


def best_victims(nodes: Mapping[str, OpenNode], asked: Asked, now: float) -> list[Held] | None:
    """Return the victims whose highest priority is lowest.

    Among these, prefer the fewest victims, and then the victims that lose the least time.

    The integer program has two kinds of variables: x is the number of requesting pods on a GPU, and
    y is their number on a node. These are the constraints:

    - x milli <= free + freed by victims
    - the x of a node add up to gpus y
    - x <= y
    - the y add up to ``asked.pods``
    """
    levels = sorted(
        {
            pod.priority
            for node in nodes.values()
            for pod in node.held
            if pod.priority < asked.priority
        }
    )
    for level in levels:
        found = _program(nodes, asked, now, level)
        if found is not None:
            return found
    return None


def _program(
    nodes: Mapping[str, OpenNode], asked: Asked, now: float, level: int
) -> list[Held] | None:
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (("output_flag", False), ("mip_rel_gap", 0.0), ("mip_abs_gap", 0.0)):
        model.setOptionValue(option, value)
    columns = 0

    def column(cost: float, most: float) -> int:
        nonlocal columns
        model.addCol(cost, 0.0, most, 0, np.zeros(0, np.int32), np.zeros(0))
        model.changeColIntegrality(columns, highspy.HighsVarType.kInteger)
        columns += 1
        return columns - 1

    def row(least: float, most: float, entries: Mapping[int, float]) -> None:
        model.addRow(
            least,
            most,
            len(entries),
            np.array(list(entries), np.int32),
            np.array(list(entries.values())),
        )

    lower = [pod for node in nodes.values() for pod in node.held if pod.priority <= level]
    all_lost = sum(pod.lost(now) for pod in lower) or 1.0
    leaves = {pod.uid: column(1000.0 + 999.0 * pod.lost(now) / all_lost, 1.0) for pod in lower}
    on_nodes = []
    for node in nodes.values():
        on_node = column(0.0, asked.pods)
        on_nodes.append(on_node)
        on_gpus = [column(0.0, asked.pods) for _ in node.free]
        row(0.0, 0.0, dict.fromkeys(on_gpus, 1.0) | {on_node: -float(asked.gpus)})
        for gpu, (on_gpu, free) in enumerate(zip(on_gpus, node.free, strict=True)):
            freed = {
                leaves[pod.uid]: -float(milli)
                for pod in node.held
                if pod.uid in leaves
                for index, milli in pod.shares
                if index == gpu
            }
            row(-highspy.kHighsInf, float(free), {on_gpu: float(asked.milli)} | freed)
            row(-highspy.kHighsInf, 0.0, {on_gpu: 1.0, on_node: -1.0})
    row(asked.pods, asked.pods, dict.fromkeys(on_nodes, 1.0))
    model.run()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    chosen = model.getSolution().col_value
    return [pod for pod in lower if chosen[leaves[pod.uid]] > 0.5]
