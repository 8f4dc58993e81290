"""Decides which mode, memory unit and sharing are in force on the node.

The mode and the sharing do not change while GPU pods are on the node, because the pods would lose
their devices (M12). A change has two steps. First the node is closed to new pods. The change takes
effect when no pod can be on its way to the node. Otherwise the kubelet would permanently fail pods
that request a resource which is no longer offered. A new memory unit takes effect at once (U5, see
``device_lists``). An invalid value changes nothing, and a condition lists the valid values (M2,
U2).

gputile offers nothing on a node whose GPUs another device plugin or DRA driver serves. The evidence
is a listening socket of a plugin in the kubelet's directory, device IDs with the UUIDs of this
node's GPUs, a running pod of a known plugin, Koordinator's resource in the node's status, or
``nvidia.com/gpu`` on a node where gputile has never offered it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from gputile.api.config.v1alpha1 import Configuration, Features
from gputile.api.core import Node, NodeCondition, Pod, node_condition
from gputile.api.quantity import QuantityError, count_of, decimal, parse_mib
from gputile.api.well_known import (
    CLAIMS_LABEL,
    INVENTORY_ANNOTATION,
    MODE_LABEL,
    MODES,
    REPLICAS_LABEL,
    SHARED_MEMORY_LABEL,
    SHARING_LABEL,
    WHOLE_GPU,
    ConditionReason,
    ConditionType,
    Mode,
)
from gputile.api.wording import first_of, nearest
from gputile.api.workloads import PodOnNode
from gputile.core.devices.inventory import MOST_REPLICAS, Gpu
from gputile.node.agent.allocation_state import AllocationState, ModeDecision
from gputile.node.agent.device_lists import UnitError, check_unit
from gputile.node.agent.node_config import EffectiveMode, Sharing
from gputile.node.nvml.probe import ProbedMachine

_NAMED_PODS = 10


class LabelError(ValueError):
    """A label of the node has an invalid value. The text states the valid values."""


def decide_effective_mode(
    state: AllocationState, gpus: Sequence[Gpu], *, free: bool = False, keep_unit: bool = False
) -> ModeDecision:
    """Decide on the mode, unit and sharing in force, from the node's labels if these are known.

    ``free`` is True if no pod can be on its way to the node, because it was closed for long enough.
    ``keep_unit`` postpones a change of the memory unit.
    """
    if state.node is None and state.saved_mode is not None:
        return state.decided
    labels = state.node.metadata.labels if state.node is not None else {}
    before, configuration = state.saved_mode, state.configuration
    by_claims = before is not None and before.claims
    gpu_pods = {pod_devices.key for pod_devices in state.device_table}  # includes prepared claims
    for pod in state.pods.values():
        pending = pod.pod.status.phase == "Pending"
        claiming = by_claims and pending and pod.pod.spec.resource_claims
        if claiming or (pod.alive and (pod.request or pod.allocation)):
            gpu_pods.add(pod.key)
    if keep_unit and before is not None:
        configuration = msgspec.structs.replace(
            configuration, gpu_memory_unit=f"{before.unit_mib}MiB"
        )
    return decide_mode(before, labels, configuration, gpus, sorted(gpu_pods), free=free)


def decide_mode(
    before: EffectiveMode | None,
    labels: Mapping[str, str],
    configuration: Configuration,
    gpus: Sequence[Gpu],
    gpu_pods: Sequence[str],
    *,
    free: bool = True,
) -> ModeDecision:
    """Decide on the mode, unit and sharing in force, from the node's labels.

    ``before`` was in force until now, or is None for a new node (M11). ``gpu_pods`` are the keys of
    the GPU pods on the node. ``free`` is True if no other pod can be on its way to the node.
    """
    current = before or EffectiveMode(Mode.EXCLUSIVE, configuration.unit_mib)
    unit, unit_condition = _unit(current, configuration.unit_mib, gpus)
    current = replace(current, unit_mib=unit)

    def decision(
        mode: EffectiveMode, reason: ConditionReason, text: str, *, bad: bool = True
    ) -> ModeDecision:
        told = node_condition(ConditionType.MODE_PENDING, "True" if bad else "False", reason, text)
        return ModeDecision(mode, (told, unit_condition), closing=reason is ConditionReason.CLOSING)

    try:
        wanted = replace(asked_for(labels), unit_mib=unit)
    except LabelError as error:
        return decision(current, ConditionReason.INVALID_LABEL, str(error))
    disabled = _disabled(wanted.mode, configuration.features)
    if disabled is not None:
        wanted = EffectiveMode(Mode.EXCLUSIVE, unit)
    if wanted == current or before is None or (free and not gpu_pods):
        if disabled is not None:
            return decision(wanted, ConditionReason.FEATURE_DISABLED, disabled)
        text = f"the node is in {_name(wanted)}"
        return decision(wanted, ConditionReason.MODE_IN_FORCE, text, bad=False)
    if gpu_pods:
        text = (
            f"{_name(current)} stays in force while GPU pods are on the node: "
            f"{first_of(sorted(gpu_pods), _NAMED_PODS)}; {_name(wanted)} follows when these pods "
            "have ended"
        )
        return decision(current, ConditionReason.PODS_ON_NODE, text)
    text = (
        f"changing from {_name(current)} to {_name(wanted)}; no GPU pods are scheduled to the node "
        f"for a moment"
    )
    return decision(current, ConditionReason.CLOSING, text, bad=False)


def asked_for(labels: Mapping[str, str]) -> EffectiveMode:
    """Return the mode and sharing that the node's labels request, with a memory unit of 0.

    Raises LabelError if a label is invalid.
    """
    mode = Mode(_label(labels, MODE_LABEL, MODES, Mode.EXCLUSIVE))
    sharing = Sharing(_label(labels, SHARING_LABEL, tuple(Sharing), Sharing.NONE))
    claims, replicas = _label(labels, CLAIMS_LABEL, ("true", "false"), "false") == "true", 1
    if sharing is not Sharing.NONE and mode is not Mode.EXCLUSIVE:
        raise LabelError(
            f"the label {SHARING_LABEL}={sharing} is valid only in mode {Mode.EXCLUSIVE}, "
            f"not in mode {mode}"
        )
    if sharing is Sharing.TIME_SLICING:
        text = labels.get(REPLICAS_LABEL, "")
        replicas = decimal(text, 3)
        if not 2 <= replicas <= MOST_REPLICAS:
            raise LabelError(
                f"the label {REPLICAS_LABEL} is {text!r}; valid are 2 to {MOST_REPLICAS}"
            )
    if claims and (mode is Mode.SHARE or sharing is Sharing.TIME_SLICING):
        way = f"mode {mode}" if mode is Mode.SHARE else sharing
        raise LabelError(
            f"the label {CLAIMS_LABEL} is not valid with {way}: kube-scheduler, which allocates "
            "claims, cannot separate trust groups on a GPU"
        )
    shared_mib, size = 0, labels.get(SHARED_MEMORY_LABEL)
    if mode.shared and size is not None:
        try:
            shared_mib = parse_mib(size)
        except QuantityError as error:
            raise LabelError(f"the label {SHARED_MEMORY_LABEL}: {error}") from error
        if not shared_mib:
            raise LabelError(
                f"the label {SHARED_MEMORY_LABEL} is {size!r}: remove the label, or set a size"
            )
    return EffectiveMode(mode, 0, sharing, replicas, claims, shared_mib)


def _label(labels: Mapping[str, str], name: str, valid: Sequence[str], default: str) -> str:
    value = labels.get(name, default)
    if value not in valid:
        raise LabelError(
            f"the label {name} is {value!r}; valid are {', '.join(valid)}{nearest(value, valid)}"
        )
    return value


def _disabled(mode: Mode, features: Features) -> str | None:
    """Return why the configuration disables the mode (M13), or None if the mode is enabled."""
    if mode.shared and not features.sharing:
        feature = "GPU sharing (features.sharing)"
    elif mode is Mode.TOPOLOGY and not features.topology:
        feature = "topology-aware scheduling (features.topology)"
    else:
        return None
    return (
        f"the label {MODE_LABEL} is {mode.value!r}, but {feature} is not enabled: the node "
        f"offers whole GPUs"
    )


def _unit(current: EffectiveMode, unit_mib: int, gpus: Sequence[Gpu]) -> tuple[int, NodeCondition]:
    kind = ConditionType.MEMORY_UNIT_REFUSED
    try:
        check_unit(tuple(gpus), unit_mib)
    except UnitError as error:
        reason = ConditionReason.TOO_MANY_DEVICES
        return current.unit_mib, node_condition(kind, "True", reason, str(error))
    text = f"the memory unit is {unit_mib} MiB"
    return unit_mib, node_condition(kind, "False", ConditionReason.UNIT_IN_FORCE, text)


def _name(effective_mode: EffectiveMode) -> str:
    name = f"mode {effective_mode.mode}"
    if effective_mode.shared_mib:
        name += f" with {effective_mode.shared_mib} MiB of each GPU"
    if effective_mode.sharing is Sharing.TIME_SLICING:
        name += f" with {effective_mode.replicas} replicas a GPU"
    if effective_mode.sharing is Sharing.MIG:
        name += " with MIG"
    return name + (" by claims" if effective_mode.claims else "")


# The device plugins of NVIDIA and HAMi name their sockets nvidia-<resource>.sock
# (internal/plugin/server.go), or nvidia.sock before NVIDIA's 0.14. GKE's socket is
# nvidiaGPU-<time>.sock. gpushare's socket is in pkg/gpu/nvidia/const.go.
SOCKET_PATTERNS = ("nvidia.sock", "nvidia-*.sock", "nvidiaGPU-*.sock", "aliyungpushare.sock")

# Labels of the pods of NVIDIA's manifests, chart, GPU Operator and DRA driver, and of the plugins
# of GKE, AKS, gpushare, HAMi and KubeVirt. A device plugin whose IDs contain the UUIDs of GPUs
# needs no entry (resources_of_others).
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
# Koordinator has no device plugin: its manager writes the amounts of GPUs into the node's status.
_KOORDINATOR_GPU = "koordinator.sh/gpu-core"


def resources_of_others(
    registered: Mapping[str, bytes], uuids: Iterable[str], node: Node | None
) -> list[str]:
    """Return the resources under which other device plugins offer GPUs with these UUIDs.

    ``registered`` are the device IDs of each resource in the kubelet's checkpoint. The checkpoint
    does not change when a plugin ends, but the node's allocatable of the resource becomes 0.
    """
    wanted = [uuid.encode() for uuid in uuids]
    there = node.status.allocatable if node is not None else {}
    return sorted(
        resource
        for resource, ids in registered.items()
        if (resource not in there or count_of(there, resource))
        and any(uuid in ids for uuid in wanted)
    )


def find_other_plugin(
    state: AllocationState, sockets: Iterable[str], machine: ProbedMachine
) -> str | None:
    """Return the evidence that another plugin or driver serves the node, or None without evidence.

    ``sockets`` are the listening sockets that match ``SOCKET_PATTERNS``.
    """
    for socket in sorted(sockets):
        return f"its socket {socket} answers"
    node = state.node
    uuids = [uuid for gpu in machine.gpus for uuid in gpu.uuids]
    for resource in resources_of_others(state.of_other_plugins, uuids, node):
        return f"it offers this node's GPUs as {resource}"
    for pod in (known.pod for known in state.pods.values()):
        if pod.status.phase == "Running" and _is_plugin(pod):
            return f"pod {pod.key} belongs to it"
    if node is None:
        return None
    if count_of(node.status.allocatable, _KOORDINATOR_GPU):
        return f"Koordinator allocates the node's GPUs as {_KOORDINATOR_GPU}"
    if WHOLE_GPU in state.resources or INVENTORY_ANNOTATION in node.metadata.annotations:
        return None
    count = count_of(node.status.allocatable, WHOLE_GPU)
    return f"the node has {count} {WHOLE_GPU} that gputile does not offer" if count else None


def _is_plugin(pod: Pod) -> bool:
    """Return whether a pod has the labels of a known plugin, and mounts the kubelet's directory.

    The labels alone are no evidence, because anyone who may create pods can set them. The Pod
    Security Standards ``baseline`` and ``restricted`` forbid the mount.
    """
    labelled = any(pod.metadata.labels.get(name) == value for name, value in _POD_LABELS)
    volumes = pod.spec.volumes if isinstance(pod, PodOnNode) else ()
    return labelled and any(
        "kubelet" in each.host_path.path for each in volumes if each.host_path is not None
    )
