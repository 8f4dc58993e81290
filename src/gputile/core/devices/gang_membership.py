"""Decides which gang a pod is part of (M13), and which of its pods wait or have started.

The pods of a gang start together or not at all. Two ways of saying so are understood, both of Kubernetes' coscheduling:
two labels on each pod, or a label that names a PodGroup object of scheduler-plugins. These rules are the same for the
controller and for the simulator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.api.quantity import decimal
from gputile.api.well_known import (
    GANG_GATE,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    MIRROR_ANNOTATION,
    POD_GROUP_LABEL,
)
from gputile.core.devices.allocation import MOST_MEMBERS, reservation_of


@dataclass(frozen=True, slots=True, order=True)
class GangName:
    """A gang. ``by_object``: its size is in a PodGroup, not in labels of its pods."""

    namespace: str
    name: str
    by_object: bool

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def gang_of(pod: Pod) -> GangName | None:
    """Return the gang of a pod, None for a pod that is scheduled alone.

    A pod whose labels name a gang and no valid size is scheduled alone, as admission tells its creator. A static pod is
    of no gang: its kubelet starts it and writes its labels, and one node's word must not count for pods of others.
    """
    meta = pod.metadata
    if MIRROR_ANNOTATION in meta.annotations:
        return None
    group = meta.labels.get(POD_GROUP_LABEL)
    if group:
        return GangName(meta.namespace, group, True)
    name = meta.labels.get(GANG_NAME_LABEL)
    return GangName(meta.namespace, name, False) if name and labelled_size(pod) else None


def labelled_size(pod: Pod) -> int:
    """Return how many pods the pod's own label says start together, 0 where it says nothing valid."""
    return max(0, decimal(pod.metadata.labels.get(GANG_SIZE_LABEL, ""), len(str(MOST_MEMBERS))))


def gated(pod: Pod) -> bool:
    return any(gate.name == GANG_GATE for gate in pod.spec.scheduling_gates)


def gang_size(gang: GangName, pods: Iterable[Pod], min_members: Mapping[tuple[str, str], int]) -> int:
    """Return how many pods of a gang start together, 0 where nobody says; ``min_members`` are those of PodGroups."""
    if gang.by_object:
        return max(0, min_members.get((gang.namespace, gang.name), 0))
    return max(labelled_size(pod) for pod in pods)


def held_by_others(pod: Pod) -> bool:
    """Return whether a pod has a scheduling gate that is not that of its gang: only its owner may judge that one."""
    return any(gate.name != GANG_GATE for gate in pod.spec.scheduling_gates)


def waits(pod: Pod) -> bool:
    """Return whether the pod could be bound if its gang's gate were gone."""
    unbound = not pod.spec.node_name and not pod.finished and pod.metadata.deletion_timestamp is None
    return unbound and not held_by_others(pod)


def started(pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods of one gang that count as started.

    One that is being deleted makes room for its successor and does not count. One that has succeeded counts while
    others of the gang run, and for pods that were to start together with it: they are in the plan by which it started,
    or existed when it was bound. Left over from an earlier run of the same name it must not let a new run start in
    part. Both times are the API server's: clocks of gputile's own processes have no say.
    """
    bound = [pod for pod in pods if pod.spec.node_name and not pod.finished and not pod.metadata.deletion_timestamp]
    succeeded = [pod for pod in pods if pod.status.phase == "Succeeded"]
    if bound or not succeeded:
        return bound + succeeded
    waiting = [pod for pod in pods if waits(pod)]
    oldest = min((pod.metadata.creation_timestamp or "" for pod in waiting), default="")
    plans = {reservation.plan for pod in waiting if (reservation := reservation_of(pod)) is not None}
    found = []
    for pod in succeeded:
        reservation = reservation_of(pod)
        of_plan = reservation is not None and reservation.plan in plans
        if of_plan or (oldest and oldest <= pod.bound_at):
            found.append(pod)
    return found


def needed_members(size: int, placed: int) -> int:
    """Return how many more pods must get a place at once, if any is to get one, when ``placed`` have theirs."""
    return max(1, size - placed)


def queue_priority(pods: Iterable[Pod]) -> int:
    """Return the priority by which a gang waits: the highest of its pods'."""
    return max(pod.spec.priority or 0 for pod in pods)


def in_line(pod: Pod) -> tuple[int, str, str]:
    """Return what kube-scheduler orders pods by, about: priority, age, and then the name."""
    return -(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", pod.metadata.name


def too_few_text(gang: GangName, size: int, there: int) -> str:
    return f"gang {gang.name}: {there} of the {size} pods that start together exist"


def together_text(gang: GangName, needed: int, placed: int = 0) -> str:
    """Return the pods that a gang starts together, as the subject of a sentence; ``placed`` have places already."""
    more = f" (beside {placed} that have a place)" if placed else ""
    return f"gang {gang.name}: {needed} pods that start together{more}"
