"""The extender's two calls to the real API server."""

from collections.abc import Callable

import msgspec

from gputile.api.core import Binding, Pod, encode_binding
from gputile.kube.connection import Connection
from gputile.kube.errors import BadAnswer, KubeError, NotFound

# Shorter than the API server's own limit, and long enough for a busy etcd: what has no answer by then is looked after.
BIND_SECONDS = 15.0

_pod = msgspec.json.Decoder(Pod)


class NoLongerActive(KubeError):
    """Another replica may be deciding by now; nothing was sent."""


class ApiServerCluster:
    """``Cluster`` on a connection; ``active`` tells whether this replica may still act."""

    def __init__(self, connection: Connection, active: Callable[[], bool]) -> None:
        self._connection = connection
        self._active = active

    async def bind(self, binding: Binding) -> None:
        """POST the Binding.

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
            body = await self._connection.get(_pod_path(namespace, name), within=5.0)
        except NotFound:
            return None
        try:
            return _pod.decode(body)
        except msgspec.MsgspecError as error:
            raise BadAnswer(f"pod {namespace}/{name} cannot be read: {error}") from error


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
