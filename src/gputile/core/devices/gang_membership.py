"""Tells which gang a pod is part of (M13).

The pods of a gang start together or not at all.

Two ways of saying so are understood, both of Kubernetes' coscheduling: two labels on each pod, or a label that names a
PodGroup object of scheduler-plugins.
"""

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

MOST_MEMBERS = 99_999


@dataclass(frozen=True, slots=True, order=True)
class GangName:
    """A gang. ``by_object`` tells that its size stands in a PodGroup, not in labels of its pods."""

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
