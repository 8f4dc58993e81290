"""Which pods are decided together, and when a gang may start: the controller's rules, for pods that are all there."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gputile.api.core import Pod
from gputile.api.pod_groups import PodGroup
from gputile.api.well_known import GANG_GATE
from gputile.core.devices.gang_membership import GangName, gang_of, labelled_size


@dataclass(slots=True)
class Groups:
    """What is known of PodGroups, by namespace and name.

    ``sizes`` are their least numbers of members, ``unreadable`` says what is wrong with those of the cluster that have
    none. ``absent`` says of any other where it is not.
    """

    sizes: dict[tuple[str, str], int] = field(default_factory=dict)
    unreadable: dict[tuple[str, str], str] = field(default_factory=dict)
    absent: str = "is in none of the files"

    def add(self, group: PodGroup) -> None:
        """Take a PodGroup in place of the one that had its namespace and name."""
        key = group.metadata.namespace or "default", group.metadata.name
        self.sizes[key] = group.spec.min_member
        self.unreadable.pop(key, None)

    def why_unknown(self, gang: GangName) -> str:
        """Return why nobody knows the size of a gang that names a PodGroup."""
        wrong = self.unreadable.get((gang.namespace, gang.name))
        if wrong is not None:
            return f"the cluster's PodGroup {gang}: {wrong}"
        return f"PodGroup {gang} {self.absent}, or its spec.minMember is not 1 or more"


@dataclass(frozen=True, slots=True)
class Turn:
    """Pods that are decided at once: those of a gang, or one pod."""

    gang: GangName | None
    pods: list[Pod]


def turns(pods: Iterable[Pod], *, gangs: bool) -> list[Turn]:
    """Return what is decided one after the other: by priority, then by creation. A gang's turn comes with its last pod.

    ``gangs`` is whether pods of gangs are decided together.
    """
    found: dict[GangName | int, Turn] = {}
    last: dict[GangName | int, int] = {}
    for i, pod in enumerate(pods):
        gang = gang_of(pod) if gangs and not held_by_others(pod) else None
        key = gang if gang is not None else i
        found.setdefault(key, Turn(gang, [])).pods.append(pod)
        last[key] = i
    ordered = sorted(found, key=lambda key: (-max(pod.spec.priority or 0 for pod in found[key].pods), last[key]))
    return [found[key] for key in ordered]


def held_by_others(pod: Pod) -> bool:
    """Return whether a pod has a scheduling gate that is not that of its gang."""
    return any(gate.name != GANG_GATE for gate in pod.spec.scheduling_gates)


def started(pods: Iterable[Pod]) -> Counter[GangName]:
    """Return how many pods of each gang run; those that have succeeded count while others of their gang run."""
    running: Counter[GangName] = Counter()
    succeeded: Counter[GangName] = Counter()
    for pod in pods:
        gang = gang_of(pod)
        if gang is None or not pod.spec.node_name:
            continue
        if pod.status.phase == "Succeeded":
            succeeded[gang] += 1
        elif not pod.finished and pod.metadata.deletion_timestamp is None:
            running[gang] += 1
    return Counter({gang: count + succeeded[gang] for gang, count in running.items()})


def size_of(gang: GangName, pods: Sequence[Pod], groups: Groups) -> int:
    """Return how many pods of a gang start together, 0 where nobody says."""
    if gang.by_object:
        return max(0, groups.sizes.get((gang.namespace, gang.name), 0))
    return max(labelled_size(pod) for pod in pods)


def incomplete(gang: GangName, size: int, running: int, waiting: int, groups: Groups) -> str:
    """Return why a gang cannot start yet whatever room there is, "" where it can.

    ``size`` pods start together; ``running`` have started, and ``waiting`` could.
    """
    if not size:
        return f"gang {gang.name}: {groups.why_unknown(gang)}"
    if waiting < max(1, size - running):
        return f"gang {gang.name}: {running + waiting} of the {size} pods that start together exist"
    return ""
