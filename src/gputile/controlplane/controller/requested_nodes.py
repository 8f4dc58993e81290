"""Keeps account of the placeholders: of those that are there, and of those just created or deleted.

No I/O, no clock. What exists is read from the cluster each time, so another leader goes on with it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gputile.api.core import Pod
from gputile.api.well_known import IDLE_NODE_ANNOTATION, NODE_TYPE_ANNOTATION
from gputile.controlplane.controller.placeholders import JOB_LABEL, placeholder_job
from gputile.core.devices.node_type import NodeType

_SECOND: Final = 10**9


@dataclass(frozen=True, slots=True)
class _Created:
    """A Job that has no pod yet: its type, when that counts no longer (Unix time, ns), and whether for an idle node."""

    type_name: str
    ends_ns: int
    idle: bool


class RequestedNodes:
    """``new_name`` gives each new placeholder a name of its own.

    They ask for nodes, each for ``wait_seconds`` at most; ``idle`` ones stand on nodes that are there.
    """

    def __init__(self, wait_seconds: int, new_name: Callable[[], str]) -> None:
        self._wait_seconds, self._new_name = wait_seconds, new_name
        self._placeholders: Mapping[str, Pod] = {}
        self._created: dict[str, _Created] = {}  # by the Job's name, as long as it has no pod
        self._deleted: set[str] = set()

    def see(self, placeholders: Mapping[str, Pod]) -> None:
        """Go by the ``placeholders`` that the watch knows now, by UID."""
        self._placeholders = placeholders

    def counts(self, *, idle: bool = False) -> Counter[str]:
        jobs = {job_of(pod) for pod in self._placeholders.values()}
        found = Counter(type_of(pod) for pod in self.alive(idle=idle))
        new = ((job, created) for job, created in self._created.items() if created.idle is idle)
        return found + Counter(created.type_name for job, created in new if job not in jobs)

    def alive(self, type_name: str | None = None, *, idle: bool = False) -> list[Pod]:
        """Return the placeholders that are there and not deleted, the oldest first; of all types for None."""
        found = [
            pod
            for pod in self._placeholders.values()
            if job_of(pod) not in self._deleted
            and (IDLE_NODE_ANNOTATION in pod.metadata.annotations) is idle
            and type_name in (None, type_of(pod))
        ]
        return sorted(found, key=lambda pod: pod.metadata.creation_timestamp or "")

    def jobs(self) -> set[str]:
        """Return the names of the Jobs that ask for nodes, also of those that have no pod yet."""
        new = {job for job, created in self._created.items() if not created.idle}
        return new | {job_of(pod) for pod in self.alive()}

    def create(self, kind: NodeType, now_ns: int, *, idle: bool = False) -> dict[str, Any]:
        name = f"gputile-placeholder-{self._new_name()}"
        # Also one whose answer is lost counts: two placeholders for one node would bring two.
        self._created[name] = _Created(kind.name, now_ns + self._wait_seconds * _SECOND, idle)
        return placeholder_job(name, kind, self._wait_seconds, idle=idle)

    def delete(self, pod: Pod) -> str:
        """Count a placeholder no longer; return the name of its Job, which is to be deleted."""
        self._deleted.add(job_of(pod))
        return job_of(pod)

    def being_deleted(self, placeholders: Mapping[str, Pod]) -> bool:
        """Return whether there still are placeholders that were deleted."""
        return any(job_of(pod) in self._deleted for pod in placeholders.values())

    def not_created(self, job: str, *, refused: bool) -> None:
        """Count a Job no longer that does not exist; ``forget_gone`` tells of one that was ``refused``."""
        created = self._created.pop(job, None)
        if created is not None and refused:
            self._created[job] = replace(created, ends_ns=0)

    def not_deleted(self, job: str) -> None:
        """Note that a Job could not be deleted."""
        self._deleted.discard(job)

    def abandon(self) -> None:
        """Forget what was decided: nothing of it is written."""
        self._created.clear()
        self._deleted.clear()

    def forget_gone(self, now_ns: int) -> set[str]:
        """Forget Jobs that have pods now, or should have ended, and deleted ones that are gone.

        Return the types for which a Job asked that never had a pod.
        """
        jobs, wait_ns = {job_of(pod) for pod in self._placeholders.values()}, self._wait_seconds * _SECOND
        self._deleted &= jobs
        without_pod = {job: created for job, created in self._created.items() if job not in jobs}
        self._created = {
            job: created for job, created in without_pod.items() if 0 < created.ends_ns - now_ns <= wait_ns
        }
        ended = without_pod.keys() - self._created.keys()
        return {without_pod[job].type_name for job in ended if not without_pod[job].idle}


def job_of(pod: Pod) -> str:
    return pod.metadata.labels.get(JOB_LABEL, "")


def type_of(pod: Pod) -> str:
    return pod.metadata.annotations.get(NODE_TYPE_ANNOTATION, "")
