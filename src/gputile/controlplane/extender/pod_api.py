"""Calls the API server for a bind and for a take-over, beside the extender's watches."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gputile.api.core import Binding, Pod
from gputile.api.well_known import FENCE_ANNOTATION, EventReason
from gputile.kube.client import Connection, list_all
from gputile.kube.errors import KubeError
from gputile.kube.writes import annotate_pod_status, bind_pod, read_pod

# Shorter than the API server's own limit, and long enough for a busy etcd: what has no answer by then is looked after.
BIND_SECONDS = 15.0
POD_SECONDS = 5.0


class NoLongerActive(KubeError):
    """Another replica may be deciding by now; nothing was sent."""


class PodApi:
    """The calls on a connection; ``active`` tells whether this replica may still act.

    Errors are those of ``gputile.kube.errors``.
    """

    def __init__(self, connection: Connection, active: Callable[[], bool]) -> None:
        self._connection = connection
        self._active = active

    async def bind(self, binding: Binding) -> None:
        """Send the Binding.

        The Lease is looked at when the Binding, with the pod's version in it, is complete: a version from after the
        Lease has gone is never sent, and those from before are fenced off by the next holder (``extender.fence``).

        Raises:
            NoLongerActive: the Lease was lost between the call and now.
        """
        if not self._active():
            raise NoLongerActive("the Lease was lost before the Binding was sent")
        await bind_pod(self._connection, binding, within=BIND_SECONDS)

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Read a pod from the API server itself, None if there is none of this name."""
        return await read_pod(self._connection, namespace, name, within=POD_SECONDS)

    async def fence(self, namespace: str, name: str) -> Pod | None:
        """Write to a pod, so that it gets another resourceVersion; return it as it is then, None if it is gone.

        What is written is in it nowhere yet: a patch that changes nothing would leave the version as it is.
        """
        mark = {FENCE_ANNOTATION: secrets.token_hex(8)}
        return await annotate_pod_status(self._connection, namespace, name, mark, within=POD_SECONDS)

    async def unbound(self) -> Sequence[Pod]:
        """Return all pods that have no node, read from the API server itself."""
        return await list_all(self._connection, "/api/v1/pods", Pod, {"fieldSelector": "spec.nodeName="})


@dataclass(frozen=True, slots=True)
class PodEvent:
    """Something to tell the people who look at a pod: an Event's type, reason and message.

    With ``latest`` an Event of the same reason gets this message, whatever amounts its own had.
    """

    pod: Pod
    warning: bool
    reason: EventReason
    message: str
    latest: bool = False
