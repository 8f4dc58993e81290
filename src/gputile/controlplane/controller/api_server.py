"""Sends the controller's writes to the API server."""

import contextlib
from collections.abc import Mapping
from typing import Any

from gputile.api.core import Node, Pod
from gputile.api.well_known import GANG_GATE, RESERVATION_ANNOTATION
from gputile.kube import writes
from gputile.kube.client import Connection
from gputile.kube.errors import KubeError
from gputile.kube.events import EventRecorder

_WRITE_SECONDS = 5.0

JsonPatch = list[dict[str, Any]]


class ApiServerWriter:
    """The controller's requests to the API server. Placeholders are created in ``namespace``.

    Methods raise the errors of ``gputile.kube.errors``.
    """

    def __init__(self, connection: Connection, events: EventRecorder, namespace: str) -> None:
        self._connection = connection
        self._events = events
        self._namespace = namespace

    async def patch_node(self, name: str, patch: JsonPatch) -> None:
        await writes.patch_node(self._connection, name, patch)

    async def patch_node_status(self, name: str, patch: Mapping[str, Any]) -> None:
        await writes.patch_node_status(self._connection, name, patch)

    async def reserve(self, pod: Pod, text: str | None, nominated: str | None) -> Pod:
        """Write ``text`` as the reservation of the pod, and return the stored pod.

        If ``text`` is None, the reservation is removed. ``nominated`` is the nominated node to
        write. An empty ``nominated`` removes the nomination, and None leaves it unchanged.

        Raises:
            Conflict: the stored pod and ``pod`` have different versions.
        """
        reservation = {RESERVATION_ANNOTATION: text}
        if nominated is None:
            return await writes.annotate_pod(self._connection, pod, reservation)
        return await writes.write_reservation(
            self._connection, pod, reservation, nominated, within=_WRITE_SECONDS
        )

    async def ungate(self, pod: Pod) -> Pod:
        return await writes.remove_scheduling_gate(self._connection, pod, GANG_GATE)

    async def evict(self, namespace: str, name: str, uid: str, why: str) -> None:
        """Evict the pod with this UID, then mark the pod as preempted in its status."""
        await writes.evict_pod(self._connection, namespace, name, uid, within=_WRITE_SECONDS)
        # The eviction has been accepted, so the pod may already be gone.
        with contextlib.suppress(KubeError):
            await writes.mark_preempted(
                self._connection, namespace, name, uid, why, within=_WRITE_SECONDS
            )

    async def create_placeholder(self, job: Mapping[str, Any]) -> None:
        await writes.create_job(self._connection, self._namespace, job)

    async def delete_placeholder(self, job: str) -> None:
        await writes.delete_job(self._connection, self._namespace, job)

    async def mark_unschedulable(self, pod: Pod, message: str) -> None:
        """Write the pod condition by which autoscalers find unschedulable pods."""
        await writes.mark_unschedulable(self._connection, pod, message)

    def record(self, about: Pod | Node, reason: str, message: str, *, warning: bool) -> None:
        self._events.record(
            writes.reference_to(about), reason, message, "Warning" if warning else "Normal"
        )
