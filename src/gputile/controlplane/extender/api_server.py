"""The extender's calls to the real API server."""

import secrets
from collections.abc import Callable, Sequence

import msgspec

from gputile.api.core import Binding, Pod, encode_binding
from gputile.api.well_known import FENCE_ANNOTATION
from gputile.kube.connection import Connection
from gputile.kube.errors import BadAnswer, KubeError, NotFound
from gputile.kube.listing import list_all

# Shorter than the API server's own limit, and long enough for a busy etcd: what has no answer by then is looked after.
BIND_SECONDS = 15.0
POD_SECONDS = 5.0

_pod = msgspec.json.Decoder(Pod)


class NoLongerActive(KubeError):
    """Another replica may be deciding by now; nothing was sent."""


class ApiServerPodBinder:
    """``Cluster`` on a connection; ``active`` tells whether this replica may still act."""

    def __init__(self, connection: Connection, active: Callable[[], bool]) -> None:
        self._connection = connection
        self._active = active

    async def bind(self, binding: Binding) -> None:
        """POST the Binding.

        The Lease is looked at when the Binding, with the pod's version in it, is complete: a version from after the
        Lease has gone is never sent, and those from before are fenced off by who takes it (``extender.fence``).

        Raises:
            NoLongerActive: the Lease was lost between the call and now.
            KubeError: it failed; see there.
        """
        if not self._active():
            raise NoLongerActive("the Lease was lost before the Binding was sent")
        meta = binding.metadata
        path = f"{_pod_path(meta.namespace, meta.name)}/binding"
        await self._connection.post(path, encode_binding(binding), within=BIND_SECONDS)

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Read a pod; without a resourceVersion the API server asks etcd, so that the answer is the latest."""
        try:
            return _decoded(await self._connection.get(_pod_path(namespace, name), within=POD_SECONDS))
        except NotFound:
            return None

    async def fence(self, namespace: str, name: str) -> Pod | None:
        """Write to a pod what is in it nowhere yet: a patch that changes nothing would leave the version as it is.

        It goes through ``pods/status``, which lets nobody change what a pod runs.
        """
        patch = {"metadata": {"annotations": {FENCE_ANNOTATION: secrets.token_hex(8)}}}
        path = f"{_pod_path(namespace, name)}/status"
        try:
            return _decoded(await self._connection.patch(path, msgspec.json.encode(patch), within=POD_SECONDS))
        except NotFound:
            return None

    async def unbound(self) -> Sequence[Pod]:
        """List the pods without a node, as etcd has them."""
        return await list_all(self._connection, "/api/v1/pods", Pod, {"fieldSelector": "spec.nodeName="})


def _decoded(body: bytes) -> Pod:
    try:
        return _pod.decode(body)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"the API server's answer is no pod: {error}") from error


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
