"""Decides which pods are placed together, and when a gang may start, by the controller's rules."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gputile.api.core import Pod
from gputile.api.workloads import PodGroup
from gputile.core.devices.gang_membership import (
    GangName,
    gang_of,
    gated,
    held_by_others,
    needed_members,
    queue_priority,
    started,
    too_few_text,
)
from gputile.core.devices.request import is_decided


@dataclass(slots=True)
class PodGroups:
    """The known PodGroups, by namespace and name.

    ``sizes`` has the minMember of each valid PodGroup, ``unreadable`` the error of each invalid one in the cluster.
    ``absent`` completes the message for any other name: it states where there is no such PodGroup.
    """

    sizes: dict[tuple[str, str], int] = field(default_factory=dict)
    unreadable: dict[tuple[str, str], str] = field(default_factory=dict)
    absent: str = "is in none of the files"

    def add(self, group: PodGroup) -> None:
        """Add a PodGroup; it replaces one of the same namespace and name."""
        key = group.metadata.namespace or "default", group.metadata.name
        self.sizes[key] = group.spec.min_member
        self.unreadable.pop(key, None)

    def why_unknown(self, gang: GangName) -> str:
        """Return why the size of a gang that names a PodGroup is unknown."""
        wrong = self.unreadable.get((gang.namespace, gang.name))
        if wrong is not None:
            return f"the cluster's PodGroup {gang}: {wrong}"
        return f"PodGroup {gang} {self.absent}, or its spec.minMember is not 1 or more"


@dataclass(frozen=True, slots=True)
class PodBatch:
    """Pods that are placed together: those of a gang, or a single pod."""

    gang: GangName | None
    pods: list[Pod]


def pod_batches(pods: Iterable[Pod], *, gangs: bool) -> list[PodBatch]:
    """Return the batches in the order of placement: by priority, then in the order of ``pods``.

    With ``gangs``, the gated pods of a gang form one batch at the position of the gang's last pod. Pods of the gang
    without a gate are bound one by one. At equal priority they come before this batch, and then count as started.
    """
    found: dict[GangName | int, PodBatch] = {}
    last: dict[GangName | int, tuple[int, bool]] = {}
    for i, pod in enumerate(pods):
        gang = member_of(pod) if gangs else None
        if gang is not None:
            last[gang] = i, True
        together = gang is not None and is_gated(pod)
        key = gang if gang is not None and together else i
        found.setdefault(key, PodBatch(gang if together else None, [])).pods.append(pod)
        last.setdefault(key, (i, False))
    ordered = sorted(found, key=lambda key: (-queue_priority(found[key].pods), last[key]))
    return [found[key] for key in ordered]


def member_of(pod: Pod) -> GangName | None:
    """Return the gang that a pod counts for; None if it has no gang, or has a scheduling gate of another owner."""
    return gang_of(pod) if not held_by_others(pod) else None


def is_gated(pod: Pod) -> bool:
    """Return whether a pod of a gang has the gang's gate, or admission would add the gate."""
    return gated(pod) or is_decided(pod)


def started_by_gang(pods: Iterable[Pod]) -> dict[GangName, int]:
    """Return how many of the bound ``pods`` of each gang count as started."""
    members: dict[GangName, list[Pod]] = {}
    for pod in pods:
        gang = gang_of(pod)
        if gang is not None:
            members.setdefault(gang, []).append(pod)
    return {gang: len(started(bound)) for gang, bound in members.items()}


def incomplete(gang: GangName, size: int, running: int, waiting: int, groups: PodGroups) -> str | None:
    """Return why a gang could not start yet even with enough GPUs; None if it could.

    ``size`` pods start together; a size of 0 is unknown. ``running`` pods have started, and ``waiting`` pods could
    start.
    """
    if not size:
        return f"gang {gang.name}: {groups.why_unknown(gang)}"
    if waiting < needed_members(size, running):
        return too_few_text(gang, size, running + waiting)
    return None
