"""Detects other device plugins and DRA drivers that serve the node's GPUs: gputile then offers none.

The evidence is a listening socket of a plugin in the kubelet's directory, device IDs with the UUIDs of this node's
GPUs, a running pod of a known plugin, or ``nvidia.com/gpu`` on a node where gputile has never offered it.
"""

from collections.abc import Iterable, Mapping

from gputile.api.core import Node, Pod
from gputile.api.quantity import count_of
from gputile.api.well_known import INVENTORY_ANNOTATION, WHOLE_GPU
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.nvml.probe import ProbedMachine

# NVIDIA's device plugin names its sockets nvidia-<resource>.sock (internal/plugin/server.go), before 0.14 nvidia.sock;
# HAMi's does so too. GKE's is nvidiaGPU-<time>.sock. gpushare's serves aliyun.com/gpu-mem (pkg/gpu/nvidia/const.go).
SOCKET_PATTERNS = ("nvidia.sock", "nvidia-*.sock", "nvidiaGPU-*.sock", "aliyungpushare.sock")

# Labels of the pods of NVIDIA's manifests, chart, GPU Operator and DRA driver, and of the plugins of GKE, AKS,
# gpushare, HAMi and KubeVirt. Device plugins whose IDs have the UUIDs of GPUs need no entry (resources_of_others).
_POD_LABELS: tuple[tuple[str, str], ...] = (
    ("name", "nvidia-device-plugin-ds"),
    ("app", "nvidia-device-plugin-daemonset"),
    ("app.kubernetes.io/name", "nvidia-device-plugin"),
    ("k8s-app", "nvidia-gpu-device-plugin"),
    ("component", "gpushare-device-plugin"),
    ("app.kubernetes.io/component", "hami-device-plugin"),
    ("app", "nvidia-sandbox-device-plugin-daemonset"),
    ("dra-driver-nvidia-gpu-component", "kubelet-plugin"),
    ("nvidia-dra-driver-gpu-component", "kubelet-plugin"),
    ("app.kubernetes.io/name", "hami-k8s-dra-driver"),
)


def find_other_plugin(state: AllocationState, sockets: Iterable[str], machine: ProbedMachine) -> str | None:
    """Return the evidence that another plugin or driver serves the node, None if there is none.

    ``sockets`` are the names of the sockets on which other plugins listen.
    """
    told, node = state.advertised, state.node
    annotated = node is not None and INVENTORY_ANNOTATION in node.metadata.annotations
    served = WHOLE_GPU in told.resources or annotated
    pods = (known.pod for known in state.pods.values())
    uuids = [gpu.uuid for gpu in machine.gpus] + [each.uuid for gpu in machine.gpus for each in gpu.instances]
    rivals = resources_of_others(state.of_other_plugins, uuids, node)
    return other_plugin_evidence(sockets, rivals, pods, node, served_before=served)


def resources_of_others(registered: Mapping[str, bytes], uuids: Iterable[str], node: Node | None) -> list[str]:
    """Return the resources under which other device plugins offer GPUs with these UUIDs.

    ``registered`` are the device IDs of each resource in the kubelet's checkpoint. The kubelet does not rewrite it when
    a plugin ends, but then the node's allocatable of the resource becomes 0.
    """
    wanted = [uuid.encode() for uuid in uuids]
    there = node.status.allocatable if node is not None else {}
    return sorted(
        resource
        for resource, ids in registered.items()
        if (resource not in there or count_of(there, resource)) and any(uuid in ids for uuid in wanted)
    )


def other_plugin_evidence(
    sockets: Iterable[str], resources: Iterable[str], pods: Iterable[Pod], node: Node | None, *, served_before: bool
) -> str | None:
    """Return the evidence that another plugin or driver serves the node, None if there is none.

    ``sockets`` are the listening sockets that match ``SOCKET_PATTERNS``, and ``resources`` the result of
    ``resources_of_others``. ``served_before`` is True if the node may have ``nvidia.com/gpu`` because of gputile.
    """
    for socket in sorted(sockets):
        return f"its socket {socket} answers"
    for resource in resources:
        return f"it offers this node's GPUs as {resource}"
    for pod in pods:
        if pod.status.phase == "Running" and any(pod.metadata.labels.get(name) == value for name, value in _POD_LABELS):
            return f"pod {pod.key} belongs to it"
    if node is not None and not served_before and (count := count_of(node.status.allocatable, WHOLE_GPU)):
        return f"the node has {count} {WHOLE_GPU} that gputile does not offer"
    return None
