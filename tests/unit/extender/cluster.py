"""A model of the API server's side of a bind, with every way in which an answer can go wrong."""

import contextlib
import copy
from collections.abc import Callable
from enum import Enum

from gputile.api.core import Binding, Pod
from gputile.kube.errors import AnswerLost, Conflict, ConnectionFailed, Forbidden, NotFound, ServerError


class Fate(Enum):
    """What happens to one request."""

    OK = "executed and answered"
    LOST_EXECUTED = "executed, the answer lost"
    LOST_NEVER = "not executed, the answer lost"
    LOST_LATE = "executed later, the answer lost"
    FAILED = "a 500, executed"
    REFUSED = "a 403"
    UNREACHABLE = "no connection"


class ModelCluster:
    """Pods as the API server holds them. ``fates`` tells what happens to each bind, ``readable`` to each read."""

    def __init__(self, next_fate: Callable[[], Fate]) -> None:
        self.pods: dict[tuple[str, str], Pod] = {}
        self.late: list[Binding] = []
        self.readable = True
        self.next_fate = next_fate

    def add(self, pod: Pod) -> None:
        self.pods[pod.metadata.namespace, pod.metadata.name] = pod

    def execute(self, binding: Binding) -> None:
        """Do what the API server does with a Binding (pods/binding, BindingREST.Create)."""
        meta = binding.metadata
        pod = self.pods.get((meta.namespace, meta.name))
        if pod is None:
            raise NotFound(404, "NotFound", "no such pod")
        if pod.metadata.uid != meta.uid:
            raise Conflict(409, "Conflict", "the UID in the precondition does not match")
        if pod.spec.node_name or pod.metadata.deletion_timestamp:
            raise Conflict(409, "Conflict", "already assigned, or being deleted")
        pod.spec.node_name = binding.target.name
        pod.metadata.annotations = pod.metadata.annotations | meta.annotations

    def execute_late(self) -> None:
        """Execute what was still under way when its answer was given up."""
        for binding in self.late:
            with contextlib.suppress(Conflict, NotFound):
                self.execute(binding)
        self.late.clear()

    async def bind(self, binding: Binding) -> None:
        fate = self.next_fate()
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
