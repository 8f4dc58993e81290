"""Reads and writes what the agent needs of the API server beyond its watches."""

from collections.abc import Mapping
from typing import Any, Literal

from gputile.api.core import ObjectReference, Pod
from gputile.kube.client import Connection
from gputile.kube.events import EventRecorder
from gputile.kube.objects import list_all
from gputile.kube.writes import annotate_pod, patch_node_status, read_pod


class NodeApi:
    """The agent's calls. Errors are those of ``gputile.kube.errors``."""

    def __init__(self, connection: Connection, events: EventRecorder, node: str) -> None:
        self._connection = connection
        self._events = events
        self._node = node

    async def pod(self, namespace: str, name: str, within: float) -> Pod | None:
        return await read_pod(self._connection, namespace, name, within=within)

    async def bound_pods(self) -> list[Pod]:
        return await list_all(self._connection, "/api/v1/pods", Pod, {"fieldSelector": f"spec.nodeName={self._node}"})

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
        """Change annotations of just this pod in just this version (None removes one), and return the pod."""
        return await annotate_pod(self._connection, pod, annotations)

    async def patch_node(self, patch: Mapping[str, Any]) -> None:
        await patch_node_status(self._connection, self._node, patch)

    def record(
        self, about: ObjectReference, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        self._events.record(about, reason, message, kind)
