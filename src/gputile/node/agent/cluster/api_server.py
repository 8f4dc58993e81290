"""Reads and writes what the agent needs of the API server beyond its watches."""

import contextlib
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from gputile.api.conversion import decode
from gputile.api.core import ObjectReference, Pod
from gputile.api.resource_claims import RESOURCE_SLICES_PATH, ResourceClaim, ResourceSlice, claim_path, slice_body
from gputile.kube.client import Connection
from gputile.kube.errors import NotFound
from gputile.kube.events import EventRecorder
from gputile.kube.objects import list_all
from gputile.kube.writes import annotate_pod, patch_node_status, read_pod

APPLY_PATCH: Final = "application/apply-patch+yaml"
_MANAGER: Final = "gputile-agent"
_CLAIM: Final = msgspec.json.Decoder(ResourceClaim)
_SLICE: Final = msgspec.json.Decoder(ResourceSlice)


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

    async def claim(self, namespace: str, name: str, within: float) -> ResourceClaim | None:
        try:
            return decode(await self._connection.get(claim_path(namespace, name), within=within), _CLAIM)
        except NotFound:
            return None

    async def apply_slice(self, wanted: ResourceSlice) -> ResourceSlice:
        """Have the API server store a slice, whatever is there under its name; return it as stored."""
        path = f"{RESOURCE_SLICES_PATH}/{wanted.metadata.name}?fieldManager={_MANAGER}&force=true"
        body = msgspec.json.encode(slice_body(wanted))
        return decode(await self._connection.patch(path, body, content_type=APPLY_PATCH), _SLICE)

    async def delete_slice(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._connection.delete(f"{RESOURCE_SLICES_PATH}/{name}")

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
        """Change annotations of just this pod in just this version (None removes one), and return the pod."""
        return await annotate_pod(self._connection, pod, annotations)

    async def patch_node(self, patch: Mapping[str, Any]) -> None:
        await patch_node_status(self._connection, self._node, patch)

    def record(
        self, about: ObjectReference, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        self._events.record(about, reason, message, kind)
