"""Writes the node requests of ``node_request_planner``: creates and deletes placeholder pods.

``node_request_planner`` decides how many nodes of which type are requested. This module describes
the existing nodes to the planner (``nodes_by_type``), and writes the decisions of the planner.

A placeholder makes the cluster's autoscaler add an empty node. A placeholder names a scheduler that
does not exist, so it is never bound. The controller writes the condition by which autoscalers find
unschedulable pods. Because of its anti-affinity, a placeholder accepts only a node without pods,
except pods of DaemonSets and of kube-system. So an autoscaler puts no placeholder on a node in use,
and no two placeholders on the same node. But an autoscaler also puts a placeholder on an existing
empty node, instead of adding a node. So an additional placeholder is created for each empty node
(``TypeNodes.idle``).

A placeholder is the only pod of a Job with ``activeDeadlineSeconds``, so Kubernetes deletes it even
if gputile is gone. Placeholders are read from the cluster in each round. So a crash does no harm,
and a new leader continues with the placeholders that it finds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gputile.api.conversion import unix_seconds
from gputile.api.core import Node, Pod
from gputile.api.well_known import (
    DAEMON_LABEL,
    GPU_COUNT_LABEL,
    KARPENTER_INITIALIZED_LABEL,
    KARPENTER_POOL_LABEL,
    NODE_TYPE_ANNOTATION,
    PLACEHOLDER_LABEL,
    WHOLE_GPU,
)
from gputile.controlplane.controller.api_server import ApiServerWriter
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_round import GangEvent
from gputile.controlplane.event_loop import yielding_to_loop
from gputile.core.devices.node_type import PLACEHOLDER_SCHEDULER, NodeType
from gputile.core.kube_predicates.inter_pod import NAMESPACE_NAME_LABEL
from gputile.core.kube_predicates.pod_requests import node_allocatable
from gputile.kube.errors import ApiError, KubeError, NotFound

log = logging.getLogger(__name__)

CHECKS, CHECK_SECONDS = 100, 0.05  # number and interval of checks for deleted placeholders
_SECOND: Final = 10**9
_MESSAGE = (
    "this placeholder requests a node from the autoscaler; it is never bound, and gputile "
    "deletes it"
)
JOB_LABEL: Final = "batch.kubernetes.io/job-name"  # set by Kubernetes on the pods of a Job
_HARD: Final = ("NoSchedule", "NoExecute")
_GRACE_SECONDS: Final = 60  # Kubernetes deletes a placeholder this much later than the controller
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
        "matchExpressions": [
            {"key": NAMESPACE_NAME_LABEL, "operator": "NotIn", "values": ["kube-system"]}
        ]
    },
}


def placeholder_job(name: str, kind: NodeType, wait_seconds: int) -> dict[str, Any]:
    """Return the Job of a placeholder. The Job lasts a minute longer than ``wait_seconds``."""
    labels = {PLACEHOLDER_LABEL: "true"} | (
        {GPU_COUNT_LABEL: str(len(kind.gpus))} if kind.mode.shared else {}
    )
    container = {
        "name": "placeholder",
        "image": _IMAGE,
        "resources": {
            "limits": {resource: str(count) for resource, count in kind.resources.items()}
        },
        "securityContext": _RESTRICTED,
    }
    spec = {
        "schedulerName": PLACEHOLDER_SCHEDULER,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {kind.key: kind.value},
        "tolerations": [
            {"key": key, "operator": "Exists"}
            for key in (WHOLE_GPU, *(each.key for each in kind.taints))
        ],
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [_ON_AN_EMPTY_NODE]
            }
        },
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
                "metadata": {"labels": labels, "annotations": {NODE_TYPE_ANNOTATION: kind.name}},
                "spec": spec,
            },
        },
    }


@dataclass(slots=True)
class TypeNodes:
    """The nodes of one type.

    A node is ``usable`` while it is open to pods and all its GPUs are healthy. ``starting`` is the
    number of young nodes that are not usable yet. An autoscaler would put a placeholder on each of
    the ``idle`` nodes. Idle nodes run only pods of DaemonSets and of kube-system, and are starting
    or offer all resources of the type. Karpenter regards the nodes in ``starting_for_karpenter`` as
    starting, whatever their age. ``created_ns`` contains the creation times of all nodes.
    """

    starting: int = 0
    idle: set[str] = field(default_factory=set)
    starting_for_karpenter: set[str] = field(default_factory=set)
    usable: list[str] = field(default_factory=list)
    created_ns: list[int] = field(default_factory=list)


def nodes_by_type(
    state: ClusterState, types: Sequence[NodeType], wait_ns: int
) -> dict[str, TypeNodes]:
    """Return the nodes by type. A node may count as starting for ``wait_ns`` after its creation."""
    found = {kind.name: TypeNodes() for kind in types}
    for name, node in state.nodes.items():
        kind = next((kind for kind in types if kind.has(node)), None)
        if kind is None:
            continue
        nodes = found[kind.name]
        created_ns = int(unix_seconds(node.metadata.creation_timestamp) * _SECOND)
        nodes.created_ns.append(created_ns)
        usable = _is_usable(state, node, kind)
        unused = all(booking.reserved for booking in state.ledger.on_node(name))
        starting = unused and not usable and state.now_ns - created_ns < wait_ns
        labels = node.metadata.labels
        # Karpenter expects these nodes to offer all resources of the type later.
        if KARPENTER_POOL_LABEL in labels and labels.get(KARPENTER_INITIALIZED_LABEL) != "true":
            nodes.starting_for_karpenter.add(name)
        if usable:
            nodes.usable.append(name)
        nodes.starting += starting
        if usable:
            allocatable = node_allocatable(node)
            has_room = all(
                allocatable.get(resource, 0) >= count for resource, count in kind.resources.items()
            )
        else:
            has_room = starting or (unused and name in nodes.starting_for_karpenter)
        on_node = state.placement.predicates.pods_on(name)
        if has_room and not any(
            pod.spec.node_name and _keeps_placeholders_away(pod) for pod in on_node
        ):
            nodes.idle.add(name)
    return found


def _keeps_placeholders_away(pod: Pod) -> bool:
    """Return whether the anti-affinity of placeholders (``_ON_AN_EMPTY_NODE``) selects the pod."""
    return pod.metadata.namespace != "kube-system" and DAEMON_LABEL not in pod.metadata.labels


def _is_usable(state: ClusterState, node: Node, kind: NodeType) -> bool:
    """Return whether a node with healthy GPUs is open for pods that tolerate its type's taints."""
    info = state.ledger.info_of(node.metadata.name)
    if info is None or info.closed or not info.inventory.gpus:
        return False
    described = {(taint.key, taint.effect) for taint in kind.taints}
    closed = any(
        taint.effect in _HARD
        and taint.key != WHOLE_GPU
        and (taint.key, taint.effect) not in described
        for taint in node.spec.taints
    )
    return not closed and all(gpu.healthy for gpu in info.inventory.gpus)


@dataclass(slots=True)
class NodeRequestRound:
    """The placeholders to create and delete after one round, and the events to record."""

    now_ns: int
    created: list[NodeType] = field(default_factory=list)  # the node types of new placeholders
    deleted: list[str] = field(default_factory=list)  # Jobs to delete
    events: list[GangEvent] = field(default_factory=list)


class Placeholders:
    """Writes the Jobs of placeholders, and remembers which Jobs were just created or deleted.

    ``pods`` returns the placeholders that the watch has shown, by UID. ``new_name`` returns a
    unique name. A Job without a pod counts as a placeholder for ``wait_seconds``.
    """

    def __init__(
        self,
        writer: ApiServerWriter,
        pods: Callable[[], Mapping[str, Pod]],
        wait_seconds: int,
        new_name: Callable[[], str],
    ) -> None:
        self.failures = 0
        self._writer, self._pods, self._new_name = writer, pods, new_name
        self._wait_seconds = wait_seconds
        # the node type and the creation (Unix ns) of Jobs without a pod
        self._created: dict[str, tuple[str, int]] = {}
        self._deleted: set[str] = set()  # Jobs deleted in the latest round

    def by_type(self, pods: Mapping[str, Pod], now_ns: int) -> dict[str, list[str]]:
        """Return the Jobs by node type, oldest first. Jobs that have no pod yet are included."""
        jobs = {_job_of(pod): pod.metadata for pod in pods.values()}
        wait_ns = self._wait_seconds * _SECOND
        self._created = {
            job: (type_name, created_ns)
            for job, (type_name, created_ns) in self._created.items()
            if job not in jobs and 0 <= now_ns - created_ns < wait_ns
        }
        found_jobs = [
            (
                int(unix_seconds(meta.creation_timestamp) * _SECOND),
                job,
                meta.annotations.get(NODE_TYPE_ANNOTATION, ""),
            )
            for job, meta in jobs.items()
        ]
        found_jobs += [
            (created_ns, job, type_name) for job, (type_name, created_ns) in self._created.items()
        ]
        found: dict[str, list[str]] = {}
        for _, job, type_name in sorted(found_jobs):
            found.setdefault(type_name, []).append(job)
        return found

    async def write(self, result: NodeRequestRound) -> None:
        async for event in yielding_to_loop(result.events):
            for pod in event.pods:
                self._writer.record(pod, event.reason, event.message, warning=event.warning)
        # Deletions come first. An autoscaler must not see a placeholder and its replacement.
        self._deleted = set(result.deleted)
        for job in result.deleted:
            if await self._try_write(self._writer.delete_placeholder(job)) is None:
                self._created.pop(job, None)
        for kind in result.created:
            job = f"gputile-placeholder-{self._new_name()}"
            self._created[job] = kind.name, result.now_ns
            error = await self._try_write(
                self._writer.create_placeholder(placeholder_job(job, kind, self._wait_seconds))
            )
            # A Job that is refused for good still counts, so that it is tried again only after
            # ``wait_seconds``.
            refused = isinstance(error, ApiError) and error.refused_for_good
            if error is not None and not error.may_have_been_executed and not refused:
                del self._created[job]
        for pod in [pod for pod in self._pods().values() if not pod.status.conditions]:
            await self._try_write(self._writer.mark_unschedulable(pod, _MESSAGE))

    async def wait_until_gone(self) -> None:
        """Wait until the deleted placeholders are gone. Give up after ``CHECKS`` checks.

        Gangs start only after this wait. If a gang took the node that was added for an existing
        placeholder, an autoscaler would add another node for the placeholder.
        """
        for _ in range(CHECKS):
            if self._deleted.isdisjoint(_job_of(pod) for pod in self._pods().values()):
                return
            await asyncio.sleep(CHECK_SECONDS)

    async def _try_write(self, write: Awaitable[None]) -> KubeError | None:
        """Return the error of ``write``, or None if the write succeeded or the object is gone."""
        try:
            await write
        except NotFound:
            return None
        except KubeError as error:
            self.failures += 1
            log.warning("a write to a placeholder failed: %s", error)
            return error
        return None


def _job_of(pod: Pod) -> str:
    return pod.metadata.labels.get(JOB_LABEL, "")
