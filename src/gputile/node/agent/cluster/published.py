"""Computes what the agent writes on its node: the difference between what is and what should be.

One strategic merge patch of the node's ``status`` subresource carries it all, as the kubelet's own patches do: the
API server takes labels and annotations there too, and conditions merge by their type, so that nobody else's is lost.

The labels ``aliyun.accelerator/nvidia_name``, ``nvidia_mem`` and ``alpha.kubernetes.io/nvidia-gpu-name`` hold one
value, so they are there only where it is true of every GPU (C1, C3). Every model has a label of its own beside them, on
any node: ``model.gputile.io/<model>: "<number of gpus>"``. A node with T4 and V100 GPUs is found by
``model.gputile.io/Tesla-T4 Exists``, and avoided by ``DoesNotExist``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gputile.api.core import Node, NodeCondition, changed_conditions, node_condition
from gputile.api.reasons import ConditionReason, ConditionType
from gputile.api.well_known import (
    CONDITION_PREFIX,
    GPU_COUNT,
    HANDOVER_ANNOTATION,
    INVENTORY_ANNOTATION,
    LEGACY_MODEL_LABEL,
    MODEL_COUNT_PREFIX,
    MODEL_LABEL,
    NODE_GPU_COUNT_LABEL,
    NODE_GPU_MEMORY_LABEL,
)
from gputile.core.devices.gpu_health import Health
from gputile.core.devices.inventory import Gpu, encode_inventory, model_label_value, model_labels
from gputile.node.agent.advertise import inventory_for_scheduler
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.node_resources import (
    MachineSeen,
    mig_condition,
    mps_condition,
    other_plugin_condition,
    placement_condition,
)
from gputile.node.agent.time_shares import time_condition
from gputile.node.nvml.probe import ProbedMachine

_SINGLE: Final = frozenset((MODEL_LABEL, NODE_GPU_MEMORY_LABEL, NODE_GPU_COUNT_LABEL, LEGACY_MODEL_LABEL))


def node_labels(gpus: Sequence[Gpu]) -> dict[str, str]:
    counts = Counter(model_label_value(gpu.model) for gpu in gpus)
    return model_labels(gpus) | {f"{MODEL_COUNT_PREFIX}{model}": str(n) for model, n in counts.items() if model}


def is_ours(label: str) -> bool:
    """Return whether ``label`` is one that the agent sets, and removes where it is no longer true."""
    return label in _SINGLE or label.startswith(MODEL_COUNT_PREFIX)


# As with the pressure conditions of the kubelet, "True" is the bad news.
DRIVER_PROBLEM: Final = ConditionType.DRIVER_PROBLEM
GPU_PROBLEM: Final = ConditionType.CARD_PROBLEM


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the node should say. ``labels`` are all labels of the agent's own; ``inventory`` is None for none.

    ``opened`` says that no exchange of agents keeps the node closed any more. ``shared_gpus`` is how many GPUs share
    their memory, None where another device plugin may say so.
    """

    labels: Mapping[str, str]
    inventory: str | None
    conditions: tuple[NodeCondition, ...] = ()
    opened: bool = False
    shared_gpus: int | None = None


def wanted_status(
    state: AllocationState,
    seen: MachineSeen,
    mps_problem: str | None,
    claims: NodeCondition | None = None,
    *,
    opened: bool = False,
) -> Wanted:
    """Return what the node should say; ``opened``: no exchange of agents keeps it closed any more.

    ``mps_problem`` says why mode ``mps`` cannot be served, None if it can or another mode is in force. ``claims`` says
    whether GPUs are given by claims as asked.
    """
    inventory, told = inventory_for_scheduler(state), state.advertised
    return Wanted(
        labels=node_labels(state.node_config.inventory.gpus),
        inventory=encode_inventory(inventory) if inventory is not None else None,
        conditions=(
            *gpu_conditions(seen.machine, seen.health),
            *told.decided.conditions,
            other_plugin_condition(told.other_plugin),
            mig_condition(seen.machine, told.decided.effective_mode),
            mps_condition(told.decided.effective_mode, mps_problem),
            time_condition(state.labels),
            placement_condition(state.labels),
            *((claims,) if claims is not None else ()),
        ),
        opened=opened,
        shared_gpus=_shared_gpus(state),
    )


def _shared_gpus(state: AllocationState) -> int | None:
    """Return how many GPUs share their memory here; None where another plugin, gpushare's say, counts them."""
    if state.advertised.other_plugin is not None:
        return None
    config = state.node_config
    return len(config.inventory.gpus) if config.mode.shared and config.withheld is None else 0


def node_patch(current: Node, wanted: Wanted, now: datetime) -> dict[str, Any] | None:
    """Return the strategic merge patch that makes ``current`` say what is ``wanted``; None if it does already."""
    have = current.metadata.labels
    labels: dict[str, str | None] = {key: value for key, value in wanted.labels.items() if have.get(key) != value}
    labels |= {key: None for key in have if is_ours(key) and key not in wanted.labels}
    metadata: dict[str, Any] = {"labels": labels} if labels else {}
    annotations: dict[str, str | None] = {}
    if current.metadata.annotations.get(INVENTORY_ANNOTATION) != wanted.inventory:
        annotations[INVENTORY_ANNOTATION] = wanted.inventory
    if wanted.opened and HANDOVER_ANNOTATION in current.metadata.annotations:
        annotations[HANDOVER_ANNOTATION] = None
    if annotations:
        metadata["annotations"] = annotations
    conditions = changed_conditions(current.status.conditions, wanted.conditions, now)
    patch: dict[str, Any] = {"metadata": metadata} if metadata else {}
    status: dict[str, Any] = {"conditions": conditions} if conditions else {}
    if wanted.shared_gpus is not None:
        status |= _count_changed(current, str(wanted.shared_gpus))
    if status:
        patch["status"] = status
    return patch or None


def farewell_patch(current: Node) -> dict[str, Any] | None:
    """Return the strategic merge patch that removes what an agent has said of the node; None where none has.

    The condition of a silent agent is the controller's. Labels of a node that no agent has spoken of are others'.
    """
    spoken = [
        condition.type
        for condition in current.status.conditions
        if condition.type.startswith(CONDITION_PREFIX) and condition.type != ConditionType.AGENT_SILENT
    ]
    inventory = INVENTORY_ANNOTATION in current.metadata.annotations
    if not spoken and not inventory:
        return None
    labels = {key: None for key in current.metadata.labels if is_ours(key)}
    metadata: dict[str, Any] = {"labels": labels} if labels else {}
    if inventory:
        metadata["annotations"] = {INVENTORY_ANNOTATION: None, HANDOVER_ANNOTATION: None}
    patch: dict[str, Any] = {"metadata": metadata} if metadata else {}
    status = _count_changed(current, None) if inventory else {}
    if spoken:
        status["conditions"] = [{"type": kind, "$patch": "delete"} for kind in spoken]
    if status:
        patch["status"] = status
    return patch


def _count_changed(current: Node, count: str | None) -> dict[str, Any]:
    """Return what makes the node's resources say how many GPUs share their memory; None removes it (B9).

    The kubelet leaves alone what it does not manage, but copies the capacity into the allocatable only now and then.
    """
    resources = (("capacity", current.status.capacity), ("allocatable", current.status.allocatable))
    return {name: {GPU_COUNT: count} for name, amounts in resources if amounts.get(GPU_COUNT) != count}


def gpu_conditions(machine: ProbedMachine, health: Health) -> tuple[NodeCondition, ...]:
    """Return the conditions that tell whether the driver answers, and which GPUs are unhealthy."""
    return _driver_condition(machine), _gpu_condition(machine, health)


def _driver_condition(machine: ProbedMachine) -> NodeCondition:
    if machine.down is not None:
        return node_condition(DRIVER_PROBLEM, "True", machine.down.reason, machine.down.message)
    major, minor = machine.cuda
    message = f"driver {machine.driver}, CUDA up to {major}.{minor}, {len(machine.gpus)} GPUs"
    return node_condition(DRIVER_PROBLEM, "False", ConditionReason.DRIVER_ANSWERS, message)


def _gpu_condition(machine: ProbedMachine, health: Health) -> NodeCondition:
    unhealthy = [
        f"GPU {gpu.index}{part} ({uuid}): {health.reasons[uuid]}"
        for gpu in machine.gpus
        for uuid, part in ((gpu.uuid, ""), *((m.uuid, f" instance {m.profile}") for m in gpu.instances))
        if uuid in health.reasons
    ]
    messages = unhealthy + [problem.message for problem in machine.problems]
    if messages:
        reason = ConditionReason.CARD_UNHEALTHY if unhealthy else machine.problems[0].reason
        return node_condition(GPU_PROBLEM, "True", reason, "; ".join(messages))
    if machine.down is not None:
        return node_condition(GPU_PROBLEM, "Unknown", machine.down.reason, "no GPU can be reached")
    return node_condition(GPU_PROBLEM, "False", ConditionReason.CARDS_HEALTHY, f"{len(machine.gpus)} GPUs are healthy")
