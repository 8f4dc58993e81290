"""Derives the node's resources from the machine, what is in force and what is in the way."""

from typing import Final

from gputile.api.core import NodeCondition, node_condition
from gputile.api.reasons import ConditionReason, ConditionType
from gputile.api.well_known import MIG_PREFIX, SHARING_LABEL, Mode
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
