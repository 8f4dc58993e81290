"""Sends typed requests for single objects.

Failures raise the errors of ``gputile.kube.errors``. Except for ``annotate_pod_status``, a write to
a pod carries the pod's UID. A write whose content depends on the pod's state also carries the
resourceVersion. If the UID or the version does not match the stored pod, the API server answers
409, or 422 to a JSON patch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.api.core import POD_SCHEDULED, Binding, Node, ObjectReference, Pod, encode_binding
from gputile.kube.client import JSON_PATCH, STRATEGIC_MERGE_PATCH, Connection
from gputile.kube.errors import BadAnswer, NotFound

_POD = msgspec.json.Decoder(Pod)


async def read_pod(
    connection: Connection, namespace: str, name: str, *, within: float | None = None
) -> Pod | None:
    """Return the latest version of a pod in etcd, or None if the pod does not exist."""
    try:
        return _decoded(await connection.get(_pod_path(namespace, name), within=within))
    except NotFound:
        return None


async def annotate_pod(
    connection: Connection, pod: Pod, annotations: Mapping[str, str | None]
) -> Pod:
    """Set annotations of this version of the pod. The value None removes an annotation."""
    meta = pod.metadata
    known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    body = {"metadata": {**known, "annotations": dict(annotations)}}
    return _decoded(
        await connection.patch(_pod_path(meta.namespace, meta.name), msgspec.json.encode(body))
    )


async def annotate_pod_status(
    connection: Connection,
    namespace: str,
    name: str,
    annotations: Mapping[str, str],
    *,
    within: float,
) -> Pod | None:
    """Set annotations of the pod with this name, and return the stored pod.

    Return None if the pod does not exist. The request patches ``pods/status``. The permission for
    this does not allow changes of the pod's spec.
    """
    body = msgspec.json.encode({"metadata": {"annotations": dict(annotations)}})
    try:
        return _decoded(
            await connection.patch(f"{_pod_path(namespace, name)}/status", body, within=within)
        )
    except NotFound:
        return None


async def remove_scheduling_gate(connection: Connection, pod: Pod, gate: str) -> Pod:
    """Remove one scheduling gate of the pod, and return the stored pod."""
    meta = pod.metadata
    position = next(i for i, each in enumerate(pod.spec.scheduling_gates) if each.name == gate)
    path = f"/spec/schedulingGates/{position}"
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": meta.uid},
        {"op": "test", "path": path, "value": {"name": gate}},
        {"op": "remove", "path": path},
    ]
    body = msgspec.json.encode(patch)
    return _decoded(
        await connection.patch(_pod_path(meta.namespace, meta.name), body, content_type=JSON_PATCH)
    )


async def bind_pod(connection: Connection, binding: Binding, *, within: float) -> None:
    meta = binding.metadata
    await connection.post(
        f"{_pod_path(meta.namespace, meta.name)}/binding", encode_binding(binding), within=within
    )


async def write_reservation(
    connection: Connection,
    pod: Pod,
    annotations: Mapping[str, str | None],
    node: str,
    *,
    within: float,
) -> Pod:
    """Set annotations and ``nominatedNodeName`` of this version of the pod.

    Return the stored pod. The value None removes an annotation. An empty ``node`` removes the
    nomination. The request patches ``pods/status``.
    """
    meta = pod.metadata
    known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    body = {
        "metadata": {**known, "annotations": dict(annotations)},
        "status": {"nominatedNodeName": node or None},
    }
    path = f"{_pod_path(meta.namespace, meta.name)}/status"
    return _decoded(await connection.patch(path, msgspec.json.encode(body), within=within))


async def evict_pod(
    connection: Connection, namespace: str, name: str, uid: str, *, within: float
) -> None:
    """Create an Eviction of the pod with this UID.

    Raises:
        TooManyRequests: a PodDisruptionBudget does not allow the eviction now.
        Conflict: the pod of this name has another UID.
    """
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    path = f"{_pod_path(namespace, name)}/eviction"
    await connection.post(path, msgspec.json.encode(body), within=within)


async def mark_preempted(
    connection: Connection, namespace: str, name: str, uid: str, message: str, *, within: float
) -> None:
    """Set the pod's condition DisruptionTarget, as kube-scheduler does for its victims."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": message,
    }
    await _write_condition(connection, _pod_path(namespace, name), uid, condition, within)


async def create_job(connection: Connection, namespace: str, job: Mapping[str, Any]) -> None:
    await connection.post(_jobs_path(namespace), msgspec.json.encode(job))


async def delete_job(connection: Connection, namespace: str, name: str) -> None:
    """Delete a Job. The API server then garbage-collects its pods."""
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    await connection.delete(f"{_jobs_path(namespace)}/{name}", msgspec.json.encode(options))


async def mark_unschedulable(connection: Connection, pod: Pod, message: str) -> None:
    """Set the pod's condition PodScheduled to False, as kube-scheduler does."""
    condition = {
        "type": POD_SCHEDULED,
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    meta = pod.metadata
    await _write_condition(connection, _pod_path(meta.namespace, meta.name), meta.uid, condition)


async def _write_condition(
    connection: Connection,
    pod_path: str,
    uid: str,
    condition: Mapping[str, str],
    within: float | None = None,
) -> None:
    body = msgspec.json.encode({"metadata": {"uid": uid}, "status": {"conditions": [condition]}})
    await connection.patch(
        f"{pod_path}/status", body, content_type=STRATEGIC_MERGE_PATCH, within=within
    )


async def annotate_node(connection: Connection, name: str, annotations: Mapping[str, str]) -> None:
    await connection.patch(
        _node_path(name), msgspec.json.encode({"metadata": {"annotations": dict(annotations)}})
    )


async def patch_node(connection: Connection, name: str, patch: Sequence[Mapping[str, Any]]) -> None:
    await connection.patch(_node_path(name), msgspec.json.encode(patch), content_type=JSON_PATCH)


async def patch_node_status(connection: Connection, name: str, patch: Mapping[str, Any]) -> None:
    path = f"{_node_path(name)}/status"
    await connection.patch(path, msgspec.json.encode(patch), content_type=STRATEGIC_MERGE_PATCH)


def reference_to(subject: Pod | Node) -> ObjectReference:
    meta, kind = subject.metadata, type(subject).__name__
    return ObjectReference(
        api_version="v1", kind=kind, namespace=meta.namespace, name=meta.name, uid=meta.uid
    )


def _decoded(body: bytes) -> Pod:
    try:
        return decode(body, _POD)
    except ConversionError as error:
        raise BadAnswer(f"the response is not a pod: {error}") from error


def _jobs_path(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _node_path(name: str) -> str:
    return f"/api/v1/nodes/{name}"
