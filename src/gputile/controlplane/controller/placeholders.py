"""Builds placeholder pods, which ask the cluster's autoscaler for one empty node of a type each.

A placeholder is never bound.

A placeholder names a scheduler that does not exist, so nobody binds it; the controller writes the condition by which
autoscalers find pods that no node takes. It wants a node on which no pod runs except those of DaemonSets and of
kube-system: no node that is in use takes it in an autoscaler's eyes, and no two placeholders share one. For a node that
is there and idle, as one that a gang is to start on, there is a placeholder of its own, which keeps others off it.

It is the only pod of a Job with ``activeDeadlineSeconds``. So Kubernetes removes it, though gputile be gone.
"""

from typing import Any, Final

from gputile.api.well_known import (
    DAEMON_LABEL,
    GPU_COUNT_LABEL,
    IDLE_NODE_ANNOTATION,
    NODE_TYPE_ANNOTATION,
    PLACEHOLDER_LABEL,
    WHOLE_GPU,
)
from gputile.core.devices.node_type import PLACEHOLDER_SCHEDULER, NodeType
from gputile.core.kube_predicates.inter_pod import NAMESPACE_NAME_LABEL

JOB_LABEL: Final = "batch.kubernetes.io/job-name"  # Kubernetes; on the pods of a Job
_GRACE_SECONDS: Final = 60  # so much later than the controller does Kubernetes itself end a placeholder
_IMAGE: Final = "registry.k8s.io/pause:3.10"  # never pulled
_RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_ON_AN_EMPTY_NODE: Final = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchExpressions": [{"key": DAEMON_LABEL, "operator": "DoesNotExist"}]},
    "namespaceSelector": {
        "matchExpressions": [{"key": NAMESPACE_NAME_LABEL, "operator": "NotIn", "values": ["kube-system"]}]
    },
}


def placeholder_job(name: str, kind: NodeType, wait_seconds: int, *, idle: bool = False) -> dict[str, Any]:
    """Return the Job of a placeholder for a node of a type; it ends some time after ``wait_seconds``.

    ``idle`` marks one for a node that is there already.
    """
    amounts = {resource: str(count) for resource, count in kind.resources.items()}
    labels = {PLACEHOLDER_LABEL: "true"} | ({GPU_COUNT_LABEL: str(len(kind.gpus))} if kind.mode.shared else {})
    container = {
        "name": "placeholder",
        "image": _IMAGE,
        "resources": {"limits": amounts},
        "securityContext": _RESTRICTED,
    }
    annotations = {NODE_TYPE_ANNOTATION: kind.name} | ({IDLE_NODE_ANNOTATION: "true"} if idle else {})
    spec = {
        "schedulerName": PLACEHOLDER_SCHEDULER,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {kind.key: kind.value},
        "tolerations": [{"key": key, "operator": "Exists"} for key in (WHOLE_GPU, *(each.key for each in kind.taints))],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_ON_AN_EMPTY_NODE]}},
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {PLACEHOLDER_LABEL: "true"}},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": wait_seconds + _GRACE_SECONDS,
            "ttlSecondsAfterFinished": 0,
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": spec,
            },
        },
    }
