"""Makes the agent's calls to the API server, and applies watch events to the agent's state."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.conversion import decode
from gputile.api.core import Node, ObjectReference, Pod
from gputile.api.resource_claims import (
    RESOURCE_SLICES_PATH,
    ResourceClaim,
    ResourceSlice,
    claim_path,
    slice_body,
)
from gputile.api.workloads import PodOnNode
from gputile.kube.client import Connection
from gputile.kube.errors import NotFound
from gputile.kube.events import EventRecorder
from gputile.kube.objects import Applied, Deleted, Replaced, WatchEvent, list_all
from gputile.kube.writes import annotate_pod, patch_node_status, read_pod
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.known_pods import apply_pod, remove_pod, replace_pods

APPLY_PATCH: Final = "application/apply-patch+yaml"
_MANAGER: Final = "gputile-agent"
_CLAIM: Final = msgspec.json.Decoder(ResourceClaim)
_SLICE: Final = msgspec.json.Decoder(ResourceSlice)


@dataclass
class NodeApi:
    """The agent's calls to the API server. They raise the errors of ``gputile.kube.errors``."""

    connection: Connection
    recorder: EventRecorder
    node_name: str

    async def pod(self, namespace: str, name: str, within: float) -> Pod | None:
        return await read_pod(self.connection, namespace, name, within=within)

    async def bound_pods(self) -> Sequence[Pod]:
        of_node = {"fieldSelector": f"spec.nodeName={self.node_name}"}
        return await list_all(self.connection, "/api/v1/pods", PodOnNode, of_node)

    async def claim(self, namespace: str, name: str, within: float) -> ResourceClaim | None:
        try:
            return decode(
                await self.connection.get(claim_path(namespace, name), within=within), _CLAIM
            )
        except NotFound:
            return None

    async def apply_slice(self, wanted: ResourceSlice, *, dry_run: bool = False) -> ResourceSlice:
        """Create or overwrite a ResourceSlice by server-side apply.

        Return the slice as the API server stores it. In a dry run, nothing is stored.
        """
        path = f"{RESOURCE_SLICES_PATH}/{wanted.metadata.name}?fieldManager={_MANAGER}&force=true"
        path += "&dryRun=All" if dry_run else ""
        body = msgspec.json.encode(slice_body(wanted))
        return decode(await self.connection.patch(path, body, content_type=APPLY_PATCH), _SLICE)

    async def delete_slice(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self.connection.delete(f"{RESOURCE_SLICES_PATH}/{name}")

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
        """Change annotations of exactly this version of the pod, and return the changed pod.

        A value of None removes the annotation.
        """
        return await annotate_pod(self.connection, pod, annotations)

    async def patch_node(self, patch: Mapping[str, Any]) -> None:
        await patch_node_status(self.connection, self.node_name, patch)

    def record(
        self,
        about: ObjectReference,
        reason: str,
        message: str,
        kind: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        self.recorder.record(about, reason, message, kind)


class Wakeup:
    """A request for a loop to run soon. Several requests before the next run count as one."""

    def __init__(self) -> None:
        self._wished = asyncio.Event()

    def wish(self) -> None:
        self._wished.set()

    async def wait(self, within: float) -> None:
        """Wait for the next request, but for at most ``within`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._wished.wait()
        self._wished.clear()


@dataclass(frozen=True, slots=True)
class Wakeups:
    """The requests that wake the reconciler (``compare``) and the status writer (``publish``)."""

    compare: Wakeup = field(default_factory=Wakeup)
    publish: Wakeup = field(default_factory=Wakeup)


@dataclass
class NodeInformer:
    """Applies watch events and new configurations to the state, and wakes the agent's loops.

    ``pods_listed`` is set once the pods of the node were listed, and ``node_seen`` once the node
    was read.
    """

    state: AllocationState
    wakeups: Wakeups
    pods_listed: asyncio.Event = field(default_factory=asyncio.Event)
    node_seen: asyncio.Event = field(default_factory=asyncio.Event)

    def on_pods(self, event: WatchEvent[Pod]) -> None:
        match event:
            case Applied(pod):
                if not apply_pod(self.state.pods, pod, self.state.configuration):
                    return
            case Deleted(pod):
                remove_pod(self.state.pods, pod)
            case Replaced(pods, unreadable):
                uids = {each.uid for each in unreadable}
                replace_pods(self.state.pods, pods, self.state.configuration, uids)
                self.pods_listed.set()
            case _:
                return
        self.wakeups.compare.wish()

    def on_node(self, event: WatchEvent[Node]) -> None:
        match event:
            case Applied(node):
                if not self.state.apply_node(node):
                    return
            case Replaced(nodes):
                self.state.apply_node(next(iter(nodes), None))  # the watch selects one node
            case _:
                return
        if self.state.node is not None:
            self.node_seen.set()
        self.wakeups.compare.wish()
        self.wakeups.publish.wish()

    def configure(self, configuration: Configuration) -> None:
        self.state.configure(configuration)
        self.wakeups.compare.wish()
