"""The controller's writes to the real API server."""

from typing import Any

import msgspec

from gputile.api.core import ObjectReference, Pod
from gputile.api.well_known import GANG_GATE, HOLD_ANNOTATION
from gputile.controlplane.controller.taints import JsonPatch
from gputile.kube.connection import JSON_PATCH, STRATEGIC_MERGE_PATCH, Connection
from gputile.kube.errors import BadAnswer, NotFound
from gputile.kube.events import EventRecorder

_POD = msgspec.json.Decoder(Pod)


class ApiServerWriter:
    """``NodeWriter`` and ``PodWriter`` on a connection."""

    def __init__(self, connection: Connection, events: EventRecorder) -> None:
        self._connection = connection
        self._events = events

    async def patch_node(self, name: str, patch: JsonPatch) -> None:
        """Apply a JSON patch to a node."""
        await self._connection.patch(f"/api/v1/nodes/{name}", msgspec.json.encode(patch), content_type=JSON_PATCH)

    async def patch_node_status(self, name: str, patch: dict[str, Any]) -> None:
        """Apply a strategic merge patch to a node's status."""
        body = msgspec.json.encode(patch)
        await self._connection.patch(f"/api/v1/nodes/{name}/status", body, content_type=STRATEGIC_MERGE_PATCH)

    async def hold(self, pod: Pod, text: str | None) -> Pod:
        """Write the hold annotation of this very version of the pod, or remove it; return the pod as stored."""
        # UID and version are preconditions: the API server answers 409 where they are not the pod's.
        meta = pod.metadata
        known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {"metadata": {**known, "annotations": {HOLD_ANNOTATION: text}}}
        return _decoded(await self._connection.patch(_path(pod), msgspec.json.encode(body)))

    async def ungate(self, pod: Pod) -> Pod:
        """Remove the gate of the pod's gang; return the pod as stored."""
        position = next(i for i, gate in enumerate(pod.spec.scheduling_gates) if gate.name == GANG_GATE)
        path = f"/spec/schedulingGates/{position}"
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid},
            {"op": "test", "path": path, "value": {"name": GANG_GATE}},
            {"op": "remove", "path": path},
        ]
        return _decoded(await self._connection.patch(_path(pod), msgspec.json.encode(patch), content_type=JSON_PATCH))

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Read a pod, None where there is none of this name."""
        try:
            return _decoded(await self._connection.get(f"/api/v1/namespaces/{namespace}/pods/{name}"))
        except NotFound:
            return None

    def record(self, about: ObjectReference, reason: str, message: str, *, warning: bool) -> None:
        """Say something about an object."""
        self._events.record(about, reason, message, "Warning" if warning else "Normal")


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def _decoded(body: bytes) -> Pod:
    try:
        return _POD.decode(body)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"the API server's pod cannot be read: {error}") from error
