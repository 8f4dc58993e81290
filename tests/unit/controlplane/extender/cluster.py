"""A model of the API server's side of a bind, with every way in which an answer can go wrong."""

import contextlib
import copy
from collections.abc import Callable
from enum import Enum

from gputile.api.core import Binding, Pod
from gputile.api.well_known import RESERVATION_ANNOTATION
from gputile.controlplane.extender.binder import PodApi
from gputile.kube.errors import (
    AnswerLost,
    Conflict,
    ConnectionFailed,
    Forbidden,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
)


class Fate(Enum):
    """What happens to one request."""

    OK = "executed and answered"
    LOST_EXECUTED = "executed, the answer lost"
    LOST_NEVER = "not executed, the answer lost"
    LOST_LATE = "executed later, the answer lost"
    FAILED = "a 500, executed"
    REFUSED = "a 403"
    UNREACHABLE = "no connection"


class ModelCluster(PodApi):
    """Pods as the API server holds them. ``next_fate`` tells what happens to each bind, ``readable`` to each read.

    ``writable`` tells whether pods can be written to; ``refuses_writes`` is the answer where that is refused.
    """

    def __init__(self, next_fate: Callable[[], Fate]) -> None:
        self.pods: dict[tuple[str, str], Pod] = {}
        self.late: list[Binding] = []
        self.sent: list[Binding] = []
        self.readable = True
        self.writable = True
        self.refuses_writes: KubeError | None = None
        self.refused_evictions: set[str] = set()
        self.evicted: list[str] = []
        self.on_evict: Callable[[Pod], None] = lambda _: None
        self.now = "2026-01-01T00:00:00Z"  # of the API server's clock
        self.version = 100
        self.next_fate = next_fate

    def add(self, pod: Pod) -> None:
        self.pods[pod.metadata.namespace, pod.metadata.name] = pod
        self.touch(pod)

    def touch(self, pod: Pod) -> None:
        """Give a pod another version, as every write does."""
        self.version += 1
        pod.metadata.resource_version = str(self.version)

    def execute(self, binding: Binding) -> None:
        """Do what the API server does with a Binding (pods/binding, BindingREST.Create)."""
        meta = binding.metadata
        pod = self.pods.get((meta.namespace, meta.name))
        if pod is None:
            raise NotFound(404, "NotFound", "no such pod")
        if pod.metadata.uid != meta.uid:
            raise Conflict(409, "Conflict", "the UID in the precondition does not match")
        if meta.resource_version not in ("", pod.metadata.resource_version):
            raise Conflict(409, "Conflict", "the ResourceVersion in the precondition does not match")
        if pod.spec.node_name or pod.metadata.deletion_timestamp:
            raise Conflict(409, "Conflict", "already assigned, or being deleted")
        pod.spec.node_name = binding.target.name
        pod.metadata.annotations = pod.metadata.annotations | meta.annotations
        self.touch(pod)

    def execute_late(self) -> None:
        """Execute what was still under way when its answer was given up."""
        for binding in self.late:
            with contextlib.suppress(Conflict, NotFound):
                self.execute(binding)
        self.late.clear()

    async def bind(self, binding: Binding) -> None:
        fate = self.next_fate()
        self.sent.append(binding)
        if fate is Fate.REFUSED:
            raise Forbidden(403, "Forbidden", "pods/binding")
        if fate is Fate.UNREACHABLE:
            raise ConnectionFailed("no route")
        if fate is Fate.LOST_LATE:
            self.late.append(binding)
        elif fate is not Fate.LOST_NEVER:
            self.execute(binding)
        if fate is Fate.FAILED:
            raise ServerError(500, "InternalError", "etcd is slow")
        if fate is not Fate.OK:
            raise AnswerLost("timed out")

    async def pod(self, namespace: str, name: str) -> Pod | None:
        if not self.readable:
            raise AnswerLost("timed out")
        return copy.deepcopy(self.pods.get((namespace, name)))

    async def fence(self, namespace: str, name: str) -> Pod | None:
        if self.refuses_writes is not None:
            raise self.refuses_writes
        if not self.writable:
            raise AnswerLost("timed out")
        pod = self.pods.get((namespace, name))
        if pod is not None:
            self.touch(pod)
        return copy.deepcopy(pod)

    async def reserve(self, pod: Pod, text: str | None, node: str) -> Pod:
        """Write a reservation and a nomination of this very version of a pod."""
        if not self.writable:
            raise AnswerLost("timed out")
        found = self.pods.get((pod.metadata.namespace, pod.metadata.name))
        if found is None:
            raise NotFound(404, "NotFound", "no such pod")
        if (found.metadata.uid, found.metadata.resource_version) != (pod.metadata.uid, pod.metadata.resource_version):
            raise Conflict(409, "Conflict", "the precondition does not hold")
        others = {key: each for key, each in found.metadata.annotations.items() if key != RESERVATION_ANNOTATION}
        found.metadata.annotations = others | ({RESERVATION_ANNOTATION: text} if text is not None else {})
        found.status.nominated_node_name = node
        self.touch(found)
        return copy.deepcopy(found)

    async def evict(self, namespace: str, name: str, uid: str, why: str) -> None:
        """Mark a pod as being deleted, unless ``refused_evictions`` has its name."""
        found = self.pods.get((namespace, name))
        if found is None:
            raise NotFound(404, "NotFound", "no such pod")
        if found.metadata.uid != uid:
            raise Conflict(409, "Conflict", "the UID in the precondition does not match")
        if name in self.refused_evictions:
            raise TooManyRequests(429, "TooManyRequests", "the pod's disruption budget is used up")
        if not self.writable:
            raise AnswerLost("timed out")
        self.on_evict(found)
        self.evicted.append(name)
        if found.metadata.deletion_timestamp is None:
            found.metadata.deletion_timestamp = self.now
            self.touch(found)

    async def unbound(self) -> list[Pod]:
        if not self.readable:
            raise AnswerLost("timed out")
        return [copy.deepcopy(pod) for pod in self.pods.values() if not pod.spec.node_name]
