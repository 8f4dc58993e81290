"""Finds other device plugins and DRA drivers that hand out the node's GPUs: gputile then offers none.

The evidence is a plugin's socket that answers in the kubelet's directory, device IDs with the UUIDs of this node's
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
    """Return what shows that another plugin or driver serves the node; ``sockets`` are those that answer."""
    told, node = state.advertised, state.node
    annotated = node is not None and INVENTORY_ANNOTATION in node.metadata.annotations
    served = WHOLE_GPU in told.resources or annotated
    pods = (known.pod for known in state.pods.values())
    uuids = [gpu.uuid for gpu in machine.gpus] + [each.uuid for gpu in machine.gpus for each in gpu.instances]
    rivals = resources_of_others(state.of_other_plugins, uuids, node)
    return other_plugin_evidence(sockets, rivals, pods, node, served_before=served)


def resources_of_others(registered: Mapping[str, bytes], uuids: Iterable[str], node: Node | None) -> list[str]:
    """Return the resources by which other device plugins give away GPUs with these UUIDs, whatever their names are.

    ``registered`` are the device IDs of each resource in the kubelet's checkpoint. That is not written anew when a
    plugin goes, but the kubelet then says of the node that it has 0 of the resource.
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
    """Return what shows that another plugin or driver serves the node, None where none does.

    ``sockets`` are the answering sockets that match ``SOCKET_PATTERNS``, and ``resources`` the ``resources_of_others``;
    ``served_before`` says that gputile itself may be why ``nvidia.com/gpu`` is there.
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
