"""Objects of the kinds of which an API server refuses changes, and changes of them that it takes or refuses.

A real API server was asked about each, see ``tests/e2e/test_changed_manifests.py``.
"""

from dataclasses import dataclass

from tests.manifests import DAEMON_SET, DEPLOYMENT, JOB, POD, REPLICA_SET, STATEFUL_SET, Json, changed


@dataclass(frozen=True, slots=True)
class Change:
    """A value at a path of the object of a kind, and whether an API server refuses to change it to that."""

    kind: str
    path: str
    value: object
    refused: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


def _of(kind: str, version: str, **fields: object) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "w"}, **fields}


_REFERENCE: Json = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
_CLAIM: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_BODIES: tuple[Json, ...] = (
    changed(POD, "spec.tolerations", [{"key": "k", "operator": "Exists"}]),
    JOB,
    DEPLOYMENT,
    DAEMON_SET,
    REPLICA_SET,
    STATEFUL_SET,
    _of("PersistentVolumeClaim", "v1", spec=_CLAIM),
    _of("Service", "v1", spec={"selector": {"a": "b"}, "ports": [{"port": 80}]}),
    _of("ConfigMap", "v1", data={"a": "b"}, immutable=True),
    _of("Secret", "v1", data={"a": "Yg=="}, type="Opaque", immutable=True),
    _of("RoleBinding", "rbac.authorization.k8s.io/v1", roleRef=_REFERENCE),
    _of("StorageClass", "storage.k8s.io/v1", provisioner="example.com/p", reclaimPolicy="Delete"),
    _of("PriorityClass", "scheduling.k8s.io/v1", value=5),
    _of("RuntimeClass", "node.k8s.io/v1", handler="runc"),
    _of("IngressClass", "networking.k8s.io/v1", spec={"controller": "example.com/c"}),
    _of("ResourceQuota", "v1", spec={"hard": {"pods": 5}, "scopes": ["Terminating"]}),
)
_AFFINITY: Json = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]
        }
    }
}
GATED = changed(
    changed(changed(POD, "spec.schedulingGates", [{"name": "example.com/g"}]), "spec.nodeSelector", {"a": "b"}),
    "spec.affinity",
    _AFFINITY,
)
_TERM = "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
_MORE: Json = {"key": "disk", "operator": "Exists"}
STORED: dict[str, Json] = {body["kind"]: body for body in _BODIES}
_LABELS: Json = {"app": "x", "more": "m"}
CHANGES = (
    Change("Pod", "spec.containers.0.image", "j", False),
    Change("Pod", "metadata.labels", {"a": "b"}, False),
    Change("Pod", "spec.activeDeadlineSeconds", 9, False),
    Change("Pod", "spec.tolerations", [{"key": "k", "operator": "Exists"}, {"key": "l", "operator": "Exists"}], False),
    Change("Pod", "spec.tolerations", [{"key": "l", "operator": "Exists"}], True),
    Change("Pod", "spec.schedulingGates", [{"name": "example.com/g"}], True),
    Change("Pod", "spec.nodeSelector", {"zone": "a"}, True),
    Change("Pod", "spec.containers.0.env", [{"name": "A", "value": "b"}], True),
    Change("Pod", "spec.containers.0.resources.limits", {"cpu": 2}, True),
    Change("Pod", "spec.containers.0.name", "other", True),
    Change("Pod", "spec.hostNetwork", True, True),
    Change("Pod", "spec.restartPolicy", "Never", True),
    Change("Job", "spec.template.spec.containers.0.image", "j", True),
    Change("Job", "spec.template.metadata.labels", _LABELS, True),
    Change("Job", "spec.parallelism", 2, False),
    Change("Job", "spec.backoffLimit", 2, False),
    Change("Job", "spec.completions", 2, True),
    Change("Job", "spec.completionMode", "Indexed", True),
    Change("Deployment", "spec.replicas", 7, False),
    Change("Deployment", "spec.template.spec.containers.0.image", "j", False),
    Change("StatefulSet", "spec.replicas", 7, False),
    Change("StatefulSet", "spec.template.spec.containers.0.image", "j", False),
    Change("StatefulSet", "spec.minReadySeconds", 7, False),
    Change("StatefulSet", "spec.serviceName", "other", True),
    Change("StatefulSet", "spec.podManagementPolicy", "Parallel", True),
    Change("StatefulSet", "spec.volumeClaimTemplates", [{"metadata": {"name": "v"}, "spec": _CLAIM}], True),
    *(
        Change(kind, path, _LABELS, refused)
        for kind in ("Deployment", "DaemonSet", "ReplicaSet", "StatefulSet")
        for path, refused in (("spec.selector.matchLabels", True), ("metadata.labels", False))
    ),
    Change("PersistentVolumeClaim", "spec.accessModes", ["ReadWriteMany"], True),
    Change("PersistentVolumeClaim", "spec.storageClassName", "other", False),
    Change("PersistentVolumeClaim", "spec.resources.requests.storage", "2Gi", True),
    Change("PersistentVolumeClaim", "metadata.labels", {"a": "b"}, False),
    Change("Service", "spec.selector", {"a": "c"}, False),
    Change("Service", "spec.type", "NodePort", False),
    Change("ConfigMap", "data", {"a": "c"}, True),
    Change("ConfigMap", "immutable", False, True),
    Change("Secret", "stringData", {"a": "c"}, True),
    Change("Secret", "type", "example.com/t", True),
    Change("RoleBinding", "roleRef.name", "edit", True),
    Change("StorageClass", "provisioner", "example.com/q", True),
    Change("StorageClass", "reclaimPolicy", "Retain", True),
    Change("StorageClass", "allowVolumeExpansion", True, False),
    Change("PriorityClass", "value", 6, True),
    Change("PriorityClass", "description", "d", False),
    Change("RuntimeClass", "handler", "kata", True),
    Change("IngressClass", "spec.controller", "example.com/d", True),
    Change("ResourceQuota", "spec.scopes", ["NotTerminating"], True),
    Change("ResourceQuota", "spec.hard.pods", 6, False),
)
# Changes of a Pod that waits behind a scheduling gate.
GATED_CHANGES = (
    Change("Pod", "spec.nodeSelector", {"a": "b", "zone": "c"}, False),
    Change("Pod", "spec.nodeSelector", {"a": "c"}, True),
    Change("Pod", "spec.affinity", changed(_AFFINITY, f"{_TERM}.0.matchExpressions.1", _MORE), False),
    Change("Pod", "spec.affinity", changed(_AFFINITY, f"{_TERM}.0.matchExpressions.0.values", ["a"]), True),
    Change("Pod", "spec.affinity", changed(_AFFINITY, f"{_TERM}.1", {"matchExpressions": [_MORE]}), True),
    Change("Pod", "spec.restartPolicy", "Never", True),
)
