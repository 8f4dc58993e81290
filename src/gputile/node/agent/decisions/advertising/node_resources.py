"""Derives the node's resources from the machine, what is in force and what is in the way.

Where another device plugin hands out this node's GPUs, gputile offers nothing. The evidence is a plugin's socket that
answers in the kubelet's directory, a running pod of a known plugin, or ``nvidia.com/gpu`` on a node where gputile has
never offered it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gputile.api.core import Node, NodeCondition, Pod, node_condition
from gputile.api.quantity import count_of
from gputile.api.reasons import ConditionReason, ConditionType
from gputile.api.well_known import MIG_PREFIX, SHARING_LABEL, WHOLE_GPU, Mode
from gputile.core.devices.gpu_health import Health
from gputile.core.devices.inventory import Inventory
from gputile.node.agent.state.node_config import (
    EffectiveMode,
    MigDevice,
    NodeConfig,
    Sharing,
    Withholding,
    WithholdingRule,
)
from gputile.node.nvml.probe import Mig, ProbedMachine, inventory_of


@dataclass(frozen=True, slots=True)
class MachineSeen:
    """The machine's GPUs are as ``machine`` and ``health`` say.

    ``free`` says that no pod can be on its way to the node any more: it has been closed for long enough. ``keep_unit``
    puts off another memory unit.
    """

    machine: ProbedMachine
    health: Health
    free: bool = False
    keep_unit: bool = False


MIG_PROBLEM: Final = ConditionType.MIG_PROBLEM
MPS_PROBLEM: Final = ConditionType.MPS_PROBLEM


def node_config_of(
    machine: ProbedMachine,
    health: Health,
    effective_mode: EffectiveMode,
    other_plugin: str | None,
    mps_problem: str | None,
) -> NodeConfig:
    """Return what the node advertises. ``other_plugin`` and ``mps_problem`` say why it does not, None if it can."""
    replicas = effective_mode.replicas if effective_mode.sharing is Sharing.TIME_SLICING else 0
    inventory = inventory_of(machine, health, effective_mode.mode.value, effective_mode.unit_mib, replicas)
    instances = tuple(instances_of(machine, health)) if effective_mode.sharing is Sharing.MIG else ()
    withheld = None
    if other_plugin is not None:
        withheld = Withholding(WithholdingRule.OTHER_PLUGIN, other_plugin)
    elif effective_mode.mode is Mode.MPS and mps_problem is not None:
        withheld = Withholding(WithholdingRule.NO_MPS, mps_problem)
    return NodeConfig(inventory, effective_mode, instances, withheld)


def instances_of(machine: ProbedMachine, health: Health) -> list[MigDevice]:
    """Return the MIG instances of all GPUs, numbered on each GPU in the order of their IDs."""
    found = []
    for gpu in machine.gpus:
        ordered = sorted(gpu.instances, key=lambda instance: (instance.gi, instance.ci))
        for instance in ordered:
            resource = MIG_PREFIX + instance.profile.replace("+", ".")
            well = health.healthy(gpu.uuid) and health.healthy(instance.uuid)
            # GPU and compute instance IDs stay while the instance lives; positions in a list do not.
            slot = instance.gi * 100 + instance.ci
            found.append(MigDevice(gpu.index, slot, instance.uuid, resource, instance.mib, well))
    return found


def published(node_config: NodeConfig, other_plugin: str | None) -> Inventory | None:
    """Return the inventory that the scheduler sees; None where it must leave the choice of GPUs to kube-scheduler."""
    if other_plugin is not None:
        return None
    return closed(node_config) if node_config.withheld is not None else node_config.inventory


def closed(node_config: NodeConfig) -> Inventory:
    return Inventory(gpus=(), mode=node_config.mode.value, unit_mib=node_config.effective_mode.unit_mib)


def mig_condition(machine: ProbedMachine, effective_mode: EffectiveMode) -> NodeCondition:
    """Return whether MIG is as the node's label asks for (G3)."""
    wanted = effective_mode.sharing is Sharing.MIG
    split = [f"GPU {gpu.index}" for gpu in machine.gpus if gpu.mig is Mig.ON]
    if wanted and not split:
        able = any(gpu.mig is not Mig.INCAPABLE for gpu in machine.gpus)
        remedy = "switch it on (nvidia-smi -mig 1) and make instances" if able else "these GPUs cannot be split"
        return node_condition(
            MIG_PROBLEM, "True", ConditionReason.NO_MIG_INSTANCES, f"the node is to offer MIG instances: {remedy}"
        )
    bare = [f"GPU {gpu.index}" for gpu in machine.gpus if gpu.mig is Mig.ON and not gpu.instances]
    if wanted and bare:
        message = f"{', '.join(bare)} in MIG mode without instances: make some (nvidia-smi mig -cgi)"
        return node_condition(MIG_PROBLEM, "True", ConditionReason.NO_MIG_INSTANCES, message)
    if split and not wanted:
        message = f"{', '.join(split)} in MIG mode: not offered unless the node's label {SHARING_LABEL} is mig"
        return node_condition(MIG_PROBLEM, "True", ConditionReason.MIG_NOT_OFFERED, message)
    return node_condition(MIG_PROBLEM, "False", ConditionReason.MIG_AS_ASKED, "MIG is as the node's label asks for")


def mps_condition(effective_mode: EffectiveMode, problem: str | None) -> NodeCondition:
    if effective_mode.mode is Mode.MPS and problem is not None:
        return node_condition(MPS_PROBLEM, "True", ConditionReason.CONTROL_DAEMON_MISSING, problem)
    return node_condition(
        MPS_PROBLEM, "False", ConditionReason.NOT_NEEDED_OR_RUNNING, "no MPS control daemon is missing"
    )


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
