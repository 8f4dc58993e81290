"""What the agent needs of the API server beyond its watches."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from gputile.api.core import ObjectReference, Pod
from gputile.kube.connection import STRATEGIC_MERGE_PATCH, Connection
from gputile.kube.errors import NotFound
from gputile.kube.events import EventRecorder
from gputile.kube.listing import list_all

_POD = msgspec.json.Decoder(Pod)


class NodeApi(Protocol):
    """The agent's calls. Errors are those of ``gputile.kube.errors``."""

    async def pod(self, namespace: str, name: str, within: float) -> Pod | None:
        """Read a pod from the API server itself, None where there is none of this name."""

    async def bound_pods(self) -> list[Pod]:
        """Return the pods that are bound to this node, from the API server itself."""

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
        """Change annotations of just this pod in just this version (None removes one), and return the pod."""

    async def patch_node(self, patch: Mapping[str, Any]) -> None:
        """Apply a strategic merge patch to the status of this node."""

    def record(
        self, about: ObjectReference, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        """Say something about an object."""


class ApiServerNodeApi:
    """The real one."""

    def __init__(self, connection: Connection, events: EventRecorder, node: str) -> None:
        self._connection = connection
        self._events = events
        self._node = node

    async def pod(self, namespace: str, name: str, within: float) -> Pod | None:
        """Read a pod from the API server itself, None where there is none of this name."""
        try:
            body = await self._connection.get(f"/api/v1/namespaces/{namespace}/pods/{name}", within=within)
        except NotFound:
            return None
        return _POD.decode(body)

    async def bound_pods(self) -> list[Pod]:
        """Return the pods that are bound to this node, from the API server itself."""
        return await list_all(self._connection, "/api/v1/pods", Pod, {"fieldSelector": f"spec.nodeName={self._node}"})

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
        """Change annotations of just this pod in just this version (None removes one), and return the pod."""
        meta = pod.metadata
        body = {
            "metadata": {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "annotations": dict(annotations),
            }
        }
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}"
        return _POD.decode(await self._connection.patch(path, msgspec.json.encode(body)))

    async def patch_node(self, patch: Mapping[str, Any]) -> None:
        """Apply a strategic merge patch to the status of this node."""
        await self._connection.patch(
            f"/api/v1/nodes/{self._node}/status", msgspec.json.encode(patch), content_type=STRATEGIC_MERGE_PATCH
        )

    def record(
        self, about: ObjectReference, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        """Say something about an object."""
        self._events.record(about, reason, message, kind)
