"""Detects another device plugin that hands out this node's GPUs: then gputile offers nothing there.

The evidence is a plugin's socket that answers in the kubelet's directory, a running pod of a known plugin, or
``nvidia.com/gpu`` on a node where gputile has never offered it.
"""

from collections.abc import Iterable
from typing import Final

from gputile.api.core import Node, NodeCondition, Pod, node_condition
from gputile.api.quantity import count_of
from gputile.api.reasons import ConditionReason, ConditionType
from gputile.api.well_known import WHOLE_GPU

OTHER_PLUGIN: Final = ConditionType.OTHER_DEVICE_PLUGIN

# NVIDIA's device plugin names its sockets nvidia-<resource>.sock (internal/plugin/server.go), before 0.14 nvidia.sock;
# HAMi's does so too. GKE's is nvidiaGPU-<time>.sock. gpushare's serves aliyun.com/gpu-mem (pkg/gpu/nvidia/const.go).
SOCKET_PATTERNS = ("nvidia.sock", "nvidia-*.sock", "nvidiaGPU-*.sock", "aliyungpushare.sock")

# Labels of the pods of NVIDIA's manifests and chart, its GPU Operator, and of the plugins of GKE, AKS, gpushare, HAMi.
_POD_LABELS: tuple[tuple[str, str], ...] = (
    ("name", "nvidia-device-plugin-ds"),
    ("app", "nvidia-device-plugin-daemonset"),
    ("app.kubernetes.io/name", "nvidia-device-plugin"),
    ("k8s-app", "nvidia-gpu-device-plugin"),
    ("component", "gpushare-device-plugin"),
    ("app.kubernetes.io/component", "hami-device-plugin"),
)


def other_plugin_evidence(
    sockets: Iterable[str], pods: Iterable[Pod], node: Node | None, *, served_before: bool
) -> str | None:
    """Return what shows that another plugin serves the node, None where none does.

    ``sockets`` are the answering sockets that match ``SOCKET_PATTERNS``; ``served_before`` says that gputile itself
    may be why ``nvidia.com/gpu`` is there.
    """
    for socket in sorted(sockets):
        return f"its socket {socket} answers"
    for pod in pods:
        if pod.status.phase == "Running" and any(pod.metadata.labels.get(name) == value for name, value in _POD_LABELS):
            return f"pod {pod.key} is a device plugin"
    if node is not None and not served_before and (count := count_of(node.status.allocatable, WHOLE_GPU)):
        return f"the node has {count} {WHOLE_GPU} that gputile does not offer"
    return None


def other_plugin_condition(evidence: str | None) -> NodeCondition:
    if evidence is None:
        return node_condition(
            OTHER_PLUGIN, "False", ConditionReason.NONE_FOUND, "no other device plugin serves GPUs here"
        )
    message = (
        f"another device plugin hands out the GPUs of this node ({evidence}); gputile offers nothing here: "
        "keep the other plugin off the node, for instance by its nodeSelector, to let gputile serve it"
    )
    return node_condition(OTHER_PLUGIN, "True", ConditionReason.OTHER_PLUGIN_FOUND, message)
