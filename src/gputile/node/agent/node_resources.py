"""Decides which mode, unit and sharing are in force, and derives the resources of the node.

A change of mode or of sharing is held while GPU pods are on the node, since their devices would vanish under them
(M12). It happens in two steps: the node is first closed to new pods, and changes once none can be on its way to it any
more, since the kubelet kills a pod for good that comes for what is no longer offered. A new memory unit takes effect
at once (U5, see ``slots``). What is not valid changes nothing and says what would be (M2, U2).

Where another device plugin hands out this node's GPUs, gputile offers nothing. The evidence is a plugin's socket that
answers in the kubelet's directory, a running pod of a known plugin, or ``nvidia.com/gpu`` on a node where gputile has
never offered it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from gputile.api.config.v1alpha1 import Configuration, Features
from gputile.api.core import Node, NodeCondition, Pod, node_condition
from gputile.api.quantity import QuantityError, count_of, decimal, parse_mib
from gputile.api.well_known import (
    CLAIMS_LABEL,
    MIG_PREFIX,
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
from gputile.core.devices.inventory import MOST_REPLICAS, Gpu, Inventory
from gputile.node.agent.allocation_state import ModeDecision
from gputile.node.agent.device_lists import UnitError, check_unit
from gputile.node.agent.node_config import (
    EffectiveMode,
    MigDevice,
    NodeConfig,
    Sharing,
)
from gputile.node.nvml.gpu_health import Health
from gputile.node.nvml.probe import ProbedMachine, inventory_of

# As with the pressure conditions of the kubelet, "True" is the bad news.
_NAMED_PODS = 10


class LabelError(ValueError):
    """A label of the node has a value that is not valid; the text names the valid ones."""


def decide_mode(
    before: EffectiveMode | None,
    labels: Mapping[str, str],
    configuration: Configuration,
    gpus: Sequence[Gpu],
    gpu_pods: Sequence[str],
    *,
    free: bool = True,
) -> ModeDecision:
    """Return what is in force after a look at the node's labels; ``before`` is None for a node that joins (M11).

    ``gpu_pods`` are the keys of the GPU pods on the node. ``free`` says that no other can be on its way to it.
    """
    unit_mib = configuration.unit_mib
    current = before or EffectiveMode(Mode.EXCLUSIVE, unit_mib)
    unit, unit_condition = _unit(current, unit_mib, gpus)
    current = replace(current, unit_mib=unit)
    try:
        wanted = replace(asked_for(labels), unit_mib=unit)
    except LabelError as error:
        return ModeDecision(
            current,
            (
                node_condition(ConditionType.MODE_PENDING, "True", ConditionReason.INVALID_LABEL, str(error)),
                unit_condition,
            ),
        )
    disabled = _disabled(wanted.mode, configuration.features)
    if disabled is not None:
        wanted = EffectiveMode(Mode.EXCLUSIVE, unit)
    if wanted == current or before is None or (free and not gpu_pods):
        text = f"the node is in {_name(wanted)}"
        told = node_condition(ConditionType.MODE_PENDING, "False", ConditionReason.MODE_IN_FORCE, text)
        if disabled is not None:
            told = node_condition(ConditionType.MODE_PENDING, "True", ConditionReason.FEATURE_DISABLED, disabled)
        return ModeDecision(wanted, (told, unit_condition))
    if gpu_pods:
        text = _held_text(current, wanted, gpu_pods)
        return ModeDecision(
            current,
            (node_condition(ConditionType.MODE_PENDING, "True", ConditionReason.PODS_ON_NODE, text), unit_condition),
        )
    text = f"changing from {_name(current)} to {_name(wanted)}; the node takes no GPU pods for a moment"
    return ModeDecision(
        current,
        (node_condition(ConditionType.MODE_PENDING, "False", ConditionReason.CLOSING, text), unit_condition),
        closing=True,
    )


def asked_for(labels: Mapping[str, str]) -> EffectiveMode:
    """Return what the node's labels ask for; the unit is not among them.

    Raises:
        LabelError: one of them is not valid.
    """
    mode = labels.get(MODE_LABEL, Mode.EXCLUSIVE.value)
    if mode not in MODES:
        raise LabelError(f"the label {MODE_LABEL} is {mode!r}; valid are {', '.join(MODES)}{nearest(mode, MODES)}")
    way = labels.get(SHARING_LABEL, Sharing.NONE.value)
    if way not in tuple(Sharing):
        raise LabelError(f"the label {SHARING_LABEL} is {way!r}; valid are {', '.join(Sharing)}{nearest(way, Sharing)}")
    sharing, replicas = Sharing(way), 1
    if sharing is not Sharing.NONE and mode != Mode.EXCLUSIVE.value:
        raise LabelError(f"the label {SHARING_LABEL}={way} goes with mode {Mode.EXCLUSIVE.value} only, not with {mode}")
    if sharing is Sharing.TIME_SLICING:
        text = labels.get(REPLICAS_LABEL, "")
        replicas = decimal(text, 3)
        if not 2 <= replicas <= MOST_REPLICAS:
            raise LabelError(f"the label {REPLICAS_LABEL} is {text!r}; valid are 2 to {MOST_REPLICAS}")
    claims = labels.get(CLAIMS_LABEL, "false")
    if claims not in ("true", "false"):
        raise LabelError(f"the label {CLAIMS_LABEL} is {claims!r}; valid are true, false")
    if claims == "true" and (mode == Mode.SHARE.value or sharing is Sharing.TIME_SLICING):
        way = f"mode {mode}" if mode == Mode.SHARE.value else "time-slicing"
        raise LabelError(
            f"the label {CLAIMS_LABEL} does not go with {way}: kube-scheduler, which allocates claims, cannot keep "
            "trust groups apart on a GPU"
        )
    shared = shared_mib(labels) if Mode(mode).shared else 0
    return EffectiveMode(Mode(mode), 0, sharing, replicas, claims == "true", shared)


def shared_mib(labels: Mapping[str, str]) -> int:
    """Return how many MiB of each GPU pods share by memory, 0 for all of them.

    Raises:
        LabelError: the label is not valid.
    """
    text = labels.get(SHARED_MEMORY_LABEL)
    try:
        mib = parse_mib(text) if text is not None else 0
    except QuantityError as error:
        raise LabelError(f"the label {SHARED_MEMORY_LABEL}: {error}") from error
    if text is not None and not mib:
        raise LabelError(f"the label {SHARED_MEMORY_LABEL} is {text!r}: leave it out, or name a size")
    return mib


def _disabled(mode: Mode, features: Features) -> str | None:
    """Return why the cluster's owner does not want the mode (M13), None where it is wanted."""
    if mode.shared and not features.sharing:
        feature = "GPU sharing (features.sharing)"
    elif mode is Mode.TOPOLOGY and not features.topology:
        feature = "topology-aware scheduling (features.topology)"
    else:
        return None
    return f"the label {MODE_LABEL} is {mode.value!r}, and {feature} is not enabled: the node serves whole GPUs"


def _unit(current: EffectiveMode, unit_mib: int, gpus: Sequence[Gpu]) -> tuple[int, NodeCondition]:
    try:
        check_unit(tuple(gpus), unit_mib)
    except UnitError as error:
        return current.unit_mib, node_condition(
            ConditionType.MEMORY_UNIT_REFUSED, "True", ConditionReason.TOO_MANY_DEVICES, str(error)
        )
    text = f"the memory unit is {unit_mib} MiB"
    return unit_mib, node_condition(ConditionType.MEMORY_UNIT_REFUSED, "False", ConditionReason.UNIT_IN_FORCE, text)


def _held_text(current: EffectiveMode, wanted: EffectiveMode, gpu_pods: Sequence[str]) -> str:
    names = first_of(sorted(gpu_pods), _NAMED_PODS)
    return (
        f"{_name(current)} stays in force while GPU pods are on the node: {names}; "
        f"{_name(wanted)} follows when they are gone"
    )


def _name(effective_mode: EffectiveMode) -> str:
    by_claims = " by claims" if effective_mode.claims else ""
    if effective_mode.shared_mib:
        return f"mode {effective_mode.mode.value} with {effective_mode.shared_mib} MiB of each GPU{by_claims}"
    if effective_mode.sharing is Sharing.TIME_SLICING:
        return f"mode {effective_mode.mode.value} with {effective_mode.replicas} replicas a GPU"
    if effective_mode.sharing is Sharing.MIG:
        return f"mode {effective_mode.mode.value} with MIG{by_claims}"
    return f"mode {effective_mode.mode.value}{by_claims}"


def node_config_of(
    machine: ProbedMachine,
    health: Health,
    effective_mode: EffectiveMode,
    other_plugin: str | None,
    mps_problem: str | None,
) -> NodeConfig:
    """Return what the node advertises. ``other_plugin`` and ``mps_problem`` say why it does not, None if it can."""
    replicas = effective_mode.replicas if effective_mode.sharing is Sharing.TIME_SLICING else 0
    mode, unit = effective_mode.mode.value, effective_mode.unit_mib
    inventory = inventory_of(machine, health, mode, unit, replicas, effective_mode.shared_mib)
    inventory = msgspec.structs.replace(inventory, claims=effective_mode.claims)
    instances = tuple(instances_of(machine, health)) if effective_mode.sharing is Sharing.MIG else ()
    withheld = None
    if other_plugin is not None:
        withheld = f"another device plugin serves the GPUs of this node ({other_plugin})"
    elif effective_mode.mode is Mode.MPS and mps_problem is not None:
        withheld = mps_problem
    return NodeConfig(inventory, effective_mode, instances, withheld)


def instances_of(machine: ProbedMachine, health: Health) -> list[MigDevice]:
    """Return the MIG instances of all GPUs, on each GPU in the order of NVIDIA's numbers."""
    found = []
    for gpu in machine.gpus:
        ordered = sorted(gpu.instances, key=lambda instance: (instance.gi, instance.ci))
        for instance in ordered:
            resource = MIG_PREFIX + instance.profile.replace("+", ".")
            well = health.healthy(gpu.uuid) and health.healthy(instance.uuid)
            found.append(MigDevice(gpu.index, instance.uuid, resource, instance.mib, well))
    return found


def closed(node_config: NodeConfig) -> Inventory:
    return Inventory(gpus=(), mode=node_config.mode.value, unit_mib=node_config.effective_mode.unit_mib)


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
