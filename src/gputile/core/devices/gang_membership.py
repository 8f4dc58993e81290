"""Decides which gang a pod belongs to (M13), and which of the gang's pods wait or have started.

The pods of a gang start together or not at all. A gang is defined in one of two ways, both from
Kubernetes' coscheduling: by two labels on each pod, or by a label that names a PodGroup object of
scheduler-plugins. Controller and simulator use the same rules. ``scheduling.gang_plan`` places the
pods.
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
    """The name of a gang. ``by_object`` states whether a PodGroup defines the gang's size."""

    namespace: str
    name: str
    by_object: bool

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def gang_of(pod: Pod) -> GangName | None:
    """Return the gang of a pod, or None if the pod is scheduled alone.

    A pod whose labels name a gang without a valid size is scheduled alone, and admission reports
    the mistake. A static pod belongs to no gang: its kubelet starts the pod and writes its
    labels, and must not affect pods of other nodes.
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
    """Return the gang size that the pod's own label states, or 0 without a valid label."""
    return max(0, decimal(pod.metadata.labels.get(GANG_SIZE_LABEL, ""), len(str(MOST_MEMBERS))))


def has_gang_gate(pod: Pod) -> bool:
    return any(gate.name == GANG_GATE for gate in pod.spec.scheduling_gates)


def gang_size(
    gang: GangName, pods: Iterable[Pod], min_members: Mapping[tuple[str, str], int]
) -> int:
    """Return how many pods of a gang start together, or 0 if unknown.

    ``min_members`` maps the namespace and name of a PodGroup to its size.
    """
    if gang.by_object:
        return max(0, min_members.get((gang.namespace, gang.name), 0))
    return max(labelled_size(pod) for pod in pods)


def has_other_gates(pod: Pod) -> bool:
    """Return whether a pod has a scheduling gate other than its gang's.

    Only the owner of the other gate may remove it.
    """
    return any(gate.name != GANG_GATE for gate in pod.spec.scheduling_gates)


def is_waiting(pod: Pod) -> bool:
    """Return whether the pod could be bound if its gang's gate were removed."""
    unbound = (
        not pod.spec.node_name and not pod.finished and pod.metadata.deletion_timestamp is None
    )
    return unbound and not has_other_gates(pod)


def started_pods(pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods of one gang that count as started.

    A pod that is being deleted does not count, since a new pod replaces it. A succeeded pod counts
    while other pods of the gang run. Otherwise a succeeded pod counts only if a waiting pod belongs
    to the same run: the waiting pod is in the same plan, or was created before the succeeded pod
    was bound. Otherwise, pods from an earlier run could let a new run start with too few pods. The
    API server sets the times of creation and binding, so gputile's clocks do not matter.
    """
    bound = [
        pod
        for pod in pods
        if pod.spec.node_name and not pod.finished and not pod.metadata.deletion_timestamp
    ]
    succeeded = [pod for pod in pods if pod.status.phase == "Succeeded"]
    if bound or not succeeded:
        return bound + succeeded
    waiting = [pod for pod in pods if is_waiting(pod)]
    oldest = min((pod.metadata.creation_timestamp or "" for pod in waiting), default="")
    plans = {
        reservation.plan for pod in waiting if (reservation := reservation_of(pod)) is not None
    }
    found = []
    for pod in succeeded:
        reservation = reservation_of(pod)
        of_plan = reservation is not None and reservation.plan in plans
        if of_plan or (oldest and oldest <= pod.bound_at):
            found.append(pod)
    return found


def needed_members(size: int, placed: int) -> int:
    """Return how many more pods have to be placed together if ``placed`` are placed already."""
    return max(1, size - placed)


def queue_priority(pods: Iterable[Pod]) -> int:
    """Return the priority of a gang in the queue, which is the highest priority of its pods."""
    return max(pod.spec.priority or 0 for pod in pods)


def scheduling_order(pod: Pod) -> tuple[int, str, str]:
    """Return a sort key that approximates kube-scheduler's order: priority, age, then name."""
    return -(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", pod.metadata.name


def too_few_text(gang: GangName, size: int, there: int) -> str:
    return f"gang {gang.name}: {there} of the {size} pods that start together exist"


def together_text(gang: GangName, needed: int, placed: int = 0) -> str:
    """Return a phrase for messages, such as "gang a: 4 pods that start together".

    ``needed`` pods are still to be placed. ``placed`` pods are already placed.
    """
    more = f" (in addition to {placed} that are already placed)" if placed else ""
    return f"gang {gang.name}: {needed} pods that start together{more}"
