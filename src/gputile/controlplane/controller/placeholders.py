"""Asks the cluster's autoscaler for empty nodes by placeholder pods, and keeps account of them.

A placeholder names a scheduler that does not exist, so nobody binds it; the controller writes the condition by which
autoscalers find pods that no node takes. It wants a node on which no pod runs except those of DaemonSets and of
kube-system: no node that is in use takes it in an autoscaler's eyes, and no two placeholders share one. For a node that
is there and idle, as one that a gang is to start on, there is a placeholder of its own, which keeps others off it.

It is the only pod of a Job with ``activeDeadlineSeconds``. So Kubernetes removes it, though gputile be gone. What
exists is read from the cluster each time, so a crash does no harm, and another leader goes on with it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gputile.api.conversion import unix_seconds
from gputile.api.core import Pod
from gputile.api.well_known import (
    DAEMON_LABEL,
    GPU_COUNT_LABEL,
    IDLE_NODE_ANNOTATION,
    NODE_TYPE_ANNOTATION,
    PLACEHOLDER_LABEL,
    WHOLE_GPU,
)
from gputile.controlplane.controller.api_server import ApiServerWriter
from gputile.controlplane.controller.gangs.gang_round import GangEvent
from gputile.controlplane.event_loop import taking_turns
from gputile.core.devices.node_type import PLACEHOLDER_SCHEDULER, NodeType
from gputile.core.kube_predicates.inter_pod import NAMESPACE_NAME_LABEL
from gputile.kube.errors import ApiError, KubeError, NotFound

log = logging.getLogger(__name__)

LOOKS, LOOK_SECONDS = 100, 0.05  # so often, and after such a pause, is looked whether placeholders are gone
_SECOND: Final = 10**9
_MESSAGE = "this pod asks the cluster's autoscaler for a node and is never bound; gputile deletes it"
JOB_LABEL: Final = "batch.kubernetes.io/job-name"  # Kubernetes; on the pods of a Job
_GRACE_SECONDS: Final = 60  # so much later than the controller does Kubernetes itself end a placeholder
_IMAGE: Final = "registry.k8s.io/pause:3.10"  # never pulled
_RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_ON_AN_EMPTY_NODE: Final = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchExpressions": [{"key": DAEMON_LABEL, "operator": "DoesNotExist"}]},
    "namespaceSelector": {
        "matchExpressions": [{"key": NAMESPACE_NAME_LABEL, "operator": "NotIn", "values": ["kube-system"]}]
    },
}


def placeholder_job(name: str, kind: NodeType, wait_seconds: int, *, idle: bool = False) -> dict[str, Any]:
    """Return the Job of a placeholder for a node of a type; it ends some time after ``wait_seconds``.

    ``idle`` marks one for a node that is there already.
    """
    amounts = {resource: str(count) for resource, count in kind.resources.items()}
    labels = {PLACEHOLDER_LABEL: "true"} | ({GPU_COUNT_LABEL: str(len(kind.gpus))} if kind.mode.shared else {})
    container = {
        "name": "placeholder",
        "image": _IMAGE,
        "resources": {"limits": amounts},
        "securityContext": _RESTRICTED,
    }
    annotations = {NODE_TYPE_ANNOTATION: kind.name} | ({IDLE_NODE_ANNOTATION: "true"} if idle else {})
    spec = {
        "schedulerName": PLACEHOLDER_SCHEDULER,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {kind.key: kind.value},
        "tolerations": [{"key": key, "operator": "Exists"} for key in (WHOLE_GPU, *(each.key for each in kind.taints))],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_ON_AN_EMPTY_NODE]}},
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {PLACEHOLDER_LABEL: "true"}},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": wait_seconds + _GRACE_SECONDS,
            "ttlSecondsAfterFinished": 0,
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": spec,
            },
        },
    }


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One by the name of its Job; ``pod`` is None until the watch knows it. ``created_ns`` is Unix time."""

    job: str
    type_name: str
    idle: bool
    created_ns: int
    pod: Pod | None = None


class Placeholders:
    """Those that are there, or were just created, without those just deleted.

    ``new_name`` gives each new one a name of its own. They ask for nodes, each for ``wait_seconds`` at most; ``idle``
    ones stand on nodes that are there.
    """

    def __init__(self, wait_seconds: int, new_name: Callable[[], str]) -> None:
        self._wait_seconds, self._new_name = wait_seconds, new_name
        self._there: dict[str, Placeholder] = {}
        self._unseen: dict[str, Placeholder] = {}  # those of which the watch has not told yet
        self._deleted: set[str] = set()

    def observe(self, pods: Mapping[str, Pod], now_ns: int) -> set[str]:
        """Go by the pods that the watch knows now, by UID; return the types of which a Job had no pod for too long."""
        jobs = {_job_of(pod): pod for pod in pods.values()}
        self._deleted &= jobs.keys()
        self._unseen = {job: each for job, each in self._unseen.items() if job not in jobs}
        wait_ns = self._wait_seconds * _SECOND
        ended = [each for each in self._unseen.values() if not 0 <= now_ns - each.created_ns < wait_ns]
        for each in ended:
            del self._unseen[each.job]
        found = {job: _found(job, pod) for job, pod in jobs.items() if job not in self._deleted}
        self._there = found | self._unseen
        return {each.type_name for each in ended if not each.idle}

    def counts(self) -> Counter[str]:
        """Return how many nodes of each type are asked for."""
        return Counter(each.type_name for each in self._there.values() if not each.idle)

    def oldest_first(self, type_name: str, *, idle: bool = False) -> list[Placeholder]:
        found = [each for each in self._there.values() if (each.type_name, each.idle) == (type_name, idle)]
        return sorted(found, key=lambda each: each.created_ns)

    def types(self) -> set[str]:
        return {each.type_name for each in self._there.values()}

    def late(self, now_ns: int) -> set[str]:
        """Return the types of which a node was asked for that has not come in time."""
        wait_ns = self._wait_seconds * _SECOND
        asking = [each for each in self._there.values() if each.pod is not None and not each.idle]
        return {each.type_name for each in asking if now_ns - each.created_ns > wait_ns}

    def asking(self) -> set[str]:
        """Return the names of the Jobs that ask for nodes."""
        return {job for job, each in self._there.items() if not each.idle}

    def unmarked(self) -> list[Pod]:
        """Return the placeholders that autoscalers cannot see yet."""
        pods = (each.pod for each in self._there.values())
        return [pod for pod in pods if pod is not None and not pod.status.conditions]

    def create(self, kind: NodeType, now_ns: int, *, idle: bool = False) -> dict[str, Any]:
        """Return a new Job; it counts from now on, even if the answer of its creation is lost."""
        name = f"gputile-placeholder-{self._new_name()}"
        self._there[name] = self._unseen[name] = Placeholder(name, kind.name, idle, now_ns)
        return placeholder_job(name, kind, self._wait_seconds, idle=idle)

    def delete(self, placeholder: Placeholder) -> str:
        """Stop counting a placeholder; return the name of its Job, which is to be deleted."""
        self._there.pop(placeholder.job, None)
        self._unseen.pop(placeholder.job, None)
        self._deleted.add(placeholder.job)
        return placeholder.job

    def are_being_deleted(self, pods: Mapping[str, Pod]) -> bool:
        """Return whether there still are placeholders that were deleted."""
        return any(_job_of(pod) in self._deleted for pod in pods.values())

    def not_created(self, job: str, *, refused: bool) -> None:
        """Stop counting a Job that does not exist. If it was ``refused``, ``observe`` reports its type as failed."""
        created = self._unseen.pop(job, None)
        if created is not None and refused:
            self._unseen[job] = Placeholder(job, created.type_name, created.idle, 0)

    def not_deleted(self, job: str) -> None:
        """Count a Job again that could not be deleted; the next round tries again."""
        self._deleted.discard(job)

    def abandon(self) -> None:
        """Forget what was decided: nothing of it is written."""
        self._unseen.clear()
        self._deleted.clear()


def _job_of(pod: Pod) -> str:
    return pod.metadata.labels.get(JOB_LABEL, "")


def _found(job: str, pod: Pod) -> Placeholder:
    meta = pod.metadata
    created_ns = int(unix_seconds(meta.creation_timestamp) * _SECOND)
    type_name = meta.annotations.get(NODE_TYPE_ANNOTATION, "")
    return Placeholder(job, type_name, IDLE_NODE_ANNOTATION in meta.annotations, created_ns, pod)


@dataclass(slots=True)
class NodeRequestRound:
    """What a round decided: Jobs of placeholders to create, names of Jobs to delete, and what to say.

    ``unmarked`` are placeholders that autoscalers cannot see yet.
    """

    created: list[Mapping[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unmarked: list[Pod] = field(default_factory=list)
    events: list[GangEvent] = field(default_factory=list)


class NodeRequester:
    """Writes what a round decided about ``placeholders``; ``pods`` returns those that the watch knows."""

    def __init__(
        self, placeholders: Placeholders, writer: ApiServerWriter, pods: Callable[[], Mapping[str, Pod]]
    ) -> None:
        self.failures = 0
        self._placeholders, self._writer, self._pods = placeholders, writer, pods

    async def placeholders_gone(self) -> None:
        """Return when the placeholders are gone that were deleted, or after some seconds.

        An autoscaler would look for other nodes for them, and add some.
        """
        for _ in range(LOOKS):
            if not self._placeholders.are_being_deleted(self._pods()):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def write(self, result: NodeRequestRound) -> None:
        async for event in taking_turns(result.events):
            for pod in event.pods:
                self._writer.record(pod, event.reason, event.message, warning=event.warning)
        # First what goes: an autoscaler is not to see a placeholder beside the one that replaces it.
        for name in result.deleted:
            if not await self._try(self._writer.delete_placeholder(name)):
                self._placeholders.not_deleted(name)
        for job in result.created:
            await self._create(job)
        for pod in result.unmarked:
            await self._try(self._writer.mark_unschedulable(pod, _MESSAGE))

    async def _create(self, job: Mapping[str, Any]) -> None:
        try:
            await self._writer.create_placeholder(job)
        except KubeError as error:
            self._failed(error)
            if not error.may_have_been_executed:
                refused = isinstance(error, NotFound) or (isinstance(error, ApiError) and error.refused_for_good)
                self._placeholders.not_created(job["metadata"]["name"], refused=refused)

    async def _try(self, write: Awaitable[None]) -> bool:
        try:
            await write
        except NotFound:
            return True
        except KubeError as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: KubeError) -> None:
        self.failures += 1
        log.warning("a placeholder was not written: %s", error)
