"""Writes the node's labels, inventory and conditions, and records an event for each new problem.

``python -m gputile.node.agent.node_status SETTINGS`` removes what an agent wrote on a node whose
GPUs were removed. So a node that lost its GPUs does not remain a GPU node (U11). On a node without
GPUs, ``gputile.node.idle`` repeats this command until it succeeds once, and makes no other calls
to the API server.

All changes are in one strategic merge patch of the node's ``status`` subresource, as in the
kubelet's patches. The API server also accepts labels and annotations there. It merges conditions by
type, so that conditions of other writers remain.

The labels ``aliyun.accelerator/nvidia_name``, ``nvidia_mem`` and
``alpha.kubernetes.io/nvidia-gpu-name`` are set only if all GPUs have the same value (C1, C3). In
addition, each model has its own label: ``model.gputile.io/<model>: "<number of gpus>"``. So
``model.gputile.io/Tesla-T4 Exists`` selects a node with T4 and V100 GPUs, and ``DoesNotExist``
excludes it.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.api.core import (
    Node,
    NodeCondition,
    changed_conditions,
    node_condition,
)
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
    PLACEMENT_LABEL,
    PLACEMENTS,
    SHARED_MEMORY_LABEL,
    SHARING_LABEL,
    TIME_POLICY_LABEL,
    ConditionReason,
    ConditionType,
    GpuTimePolicy,
    GpuTimePolicyError,
    parse_policy,
)
from gputile.api.wording import nearest
from gputile.core.devices.inventory import model_labels
from gputile.kube.client import STRATEGIC_MERGE_PATCH, Connection
from gputile.kube.config import load_access
from gputile.kube.errors import KubeError, NotFound
from gputile.kube.writes import reference_to
from gputile.node.agent.advertise import inventory_for_scheduler
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.api_server import NodeApi
from gputile.node.agent.node_config import EffectiveMode, Sharing
from gputile.node.agent.settings import NODE, AgentSettings, decode_settings
from gputile.node.nvml.gpu_health import Health
from gputile.node.nvml.gpu_monitor import Observation
from gputile.node.nvml.probe import Mig, ProbedGpu, ProbedMachine, Problem, inventory_of

LEAVE_WITHIN_S: Final = 20.0  # the liveness probe gives up after a minute
_SINGLE: Final = frozenset(
    (MODEL_LABEL, NODE_GPU_MEMORY_LABEL, NODE_GPU_COUNT_LABEL, LEGACY_MODEL_LABEL)
)


def is_ours(label: str) -> bool:
    """Return whether the agent owns ``label``, and so removes it when it is no longer true."""
    return label in _SINGLE or label.startswith(MODEL_COUNT_PREFIX)


# The status "True" means a problem, as in the kubelet's pressure conditions.


def driver_condition(machine: ProbedMachine) -> NodeCondition:
    if machine.down is not None:
        return node_condition(
            ConditionType.DRIVER_PROBLEM, "True", machine.down.reason, machine.down.message
        )
    major, minor = machine.cuda
    text = f"driver {machine.driver}, CUDA up to {major}.{minor}, {len(machine.gpus)} GPUs"
    return node_condition(
        ConditionType.DRIVER_PROBLEM, "False", ConditionReason.DRIVER_ANSWERS, text
    )


def gpu_condition(
    machine: ProbedMachine, health: Health, effective_mode: EffectiveMode
) -> NodeCondition:
    """Report whether all GPUs and MIG instances are healthy, readable and usable in the mode."""
    kind = ConditionType.CARD_PROBLEM
    problems = [
        Problem(
            ConditionReason.CARD_UNHEALTHY,
            f"GPU {gpu.index}{part} ({uuid}): {health.reasons[uuid]}",
        )
        for gpu in machine.gpus
        for uuid, part in (
            (gpu.uuid, ""),
            *((m.uuid, f" instance {m.profile}") for m in gpu.instances),
        )
        if uuid in health.reasons
    ]
    problems += machine.problems
    problems += (
        Problem(
            ConditionReason.CARD_WITHOUT_MEMORY,
            f"GPU {gpu.index}: {gpu.model} has no memory of its own: set the label "
            f"{SHARED_MEMORY_LABEL} to the amount of the machine's memory that pods may share, "
            "or use mode default, with time-slicing for several pods",
        )
        for gpu in machine.gpus
        if gpu.unified and effective_mode.mode.shared and not effective_mode.shared_mib
    )
    if problems:
        messages = "; ".join(problem.message for problem in problems)
        return node_condition(kind, "True", problems[0].reason, messages)
    if machine.down is not None:
        return node_condition(kind, "Unknown", machine.down.reason, "no GPU can be reached")
    return node_condition(
        kind, "False", ConditionReason.CARDS_HEALTHY, f"{len(machine.gpus)} GPUs are healthy"
    )


def other_plugin_condition(evidence: str | None) -> NodeCondition:
    problem = None
    if evidence is not None:
        problem = (
            f"another device plugin serves the GPUs of this node ({evidence}), so gputile offers "
            "none: to use gputile here, exclude the node from the other plugin, for example by the "
            "plugin's nodeSelector"
        )
    well = ConditionReason.NONE_FOUND, "no other device plugin serves GPUs here"
    kind, reason = ConditionType.OTHER_DEVICE_PLUGIN, ConditionReason.OTHER_PLUGIN_FOUND
    return _condition(kind, reason, problem, well)


def mig_condition(machine: ProbedMachine, effective_mode: EffectiveMode) -> NodeCondition:
    """Report whether the MIG mode of the GPUs matches the node's label (G3)."""
    wanted = effective_mode.sharing is Sharing.MIG
    split = [gpu for gpu in machine.gpus if gpu.mig is Mig.ON]
    reason, problem = ConditionReason.NO_MIG_INSTANCES, None
    if wanted and not split:
        remedy = "these GPUs cannot be split"
        if any(gpu.mig is not Mig.INCAPABLE for gpu in machine.gpus):
            remedy = "enable MIG (nvidia-smi -mig 1) and create instances"
        problem = f"the node should offer MIG instances: {remedy}"
    elif wanted and (bare := [gpu for gpu in split if not gpu.instances]):
        problem = f"{_names(bare)} in MIG mode without instances: create some (nvidia-smi mig -cgi)"
    elif split and not wanted:
        reason = ConditionReason.MIG_NOT_OFFERED
        problem = (
            f"{_names(split)} in MIG mode: gputile offers the instances only if the node's label "
            f"{SHARING_LABEL} is mig"
        )
    well = ConditionReason.MIG_AS_ASKED, "the MIG mode matches the node's label"
    return _condition(ConditionType.MIG_PROBLEM, reason, problem, well)


def _names(gpus: Sequence[ProbedGpu]) -> str:
    return ", ".join(f"GPU {gpu.index}" for gpu in gpus)


def mps_condition(problem: str | None) -> NodeCondition:
    well = ConditionReason.NOT_NEEDED_OR_RUNNING, "the MPS control daemon runs, or is not needed"
    kind, reason = ConditionType.MPS_PROBLEM, ConditionReason.CONTROL_DAEMON_MISSING
    return _condition(kind, reason, problem, well)


def time_condition(labels: Mapping[str, str]) -> NodeCondition:
    problem = None
    try:
        parse_policy(labels.get(TIME_POLICY_LABEL, GpuTimePolicy.WEIGHTED))
    except GpuTimePolicyError as error:
        problem = f"the label {TIME_POLICY_LABEL} is not valid and is ignored: {error}"
    kind = ConditionType.TIME_POLICY_REFUSED
    return _condition(kind, ConditionReason.INVALID_LABEL, problem, _VALID_LABEL)


def placement_condition(labels: Mapping[str, str]) -> NodeCondition:
    """Report whether the node's placement label is valid.

    Schedulers ignore an invalid label, and use the configuration (M9).
    """
    placement, problem = labels.get(PLACEMENT_LABEL), None
    if placement is not None and placement not in PLACEMENTS:
        valid = f"{', '.join(PLACEMENTS)}{nearest(placement, PLACEMENTS)}"
        problem = f"the label {PLACEMENT_LABEL} is {placement!r} and is ignored; valid are {valid}"
    kind = ConditionType.PLACEMENT_REFUSED
    return _condition(kind, ConditionReason.INVALID_LABEL, problem, _VALID_LABEL)


_VALID_LABEL: Final = (ConditionReason.VALID, "the node's label is valid, or absent")


def _condition(
    kind: ConditionType,
    reason: ConditionReason,
    problem: str | None,
    well: tuple[ConditionReason, str],
) -> NodeCondition:
    if problem:
        return node_condition(kind, "True", reason, problem)
    return node_condition(kind, "False", *well)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The desired metadata and status of the node.

    The agent's labels that are not in ``labels`` are removed. ``inventory`` is None if the node
    must have no inventory. ``opened`` is True if no handover between agents keeps the node closed.
    ``resources`` are amounts for capacity and allocatable, or None for a resource to remove (B9).
    """

    labels: Mapping[str, str]
    inventory: str | None
    conditions: tuple[NodeCondition, ...] = ()
    opened: bool = False
    resources: Mapping[str, str | None] = field(default_factory=dict)


def wanted_status(
    state: AllocationState,
    seen: Observation,
    mps_problem: str | None,
    *claims: NodeCondition,
    opened: bool = False,
) -> Wanted:
    """Return the desired labels, annotations and conditions.

    ``mps_problem`` is the reason why mode ``mps`` cannot be served, or None. ``claims`` is the
    condition that reports whether GPUs are offered to claims as requested. ``Wanted`` describes
    ``opened``.
    """
    config = state.node_config
    resources: dict[str, str | None] = {}
    if state.other_plugin is None:  # otherwise that plugin may write the number, as gpushare's does
        shares = config.mode.shared and config.withheld is None
        resources[GPU_COUNT] = str(len(config.inventory.gpus) * shares)
    return Wanted(
        labels=model_labels(inventory_of(seen.machine, seen.health).gpus),
        inventory=inventory_for_scheduler(state),
        conditions=(
            driver_condition(seen.machine),
            gpu_condition(seen.machine, seen.health, config.effective_mode),
            *state.decided.conditions,
            other_plugin_condition(state.other_plugin),
            mig_condition(seen.machine, config.effective_mode),
            mps_condition(mps_problem),
            time_condition(state.labels),
            placement_condition(state.labels),
            *claims,
        ),
        opened=opened,
        resources=resources,
    )


def node_patch(current: Node, wanted: Wanted, now: datetime) -> dict[str, Any] | None:
    """Return the strategic merge patch from ``current`` to ``wanted``, or None if they agree."""
    meta, status = current.metadata, current.status
    labels = {**dict.fromkeys(filter(is_ours, meta.labels)), **wanted.labels}
    annotations = {INVENTORY_ANNOTATION: wanted.inventory}
    if wanted.opened:
        annotations[HANDOVER_ANNOTATION] = None
    fields: tuple[tuple[str, str, Mapping[str, object], Mapping[str, str | None]], ...] = (
        ("metadata", "labels", meta.labels, labels),
        ("metadata", "annotations", meta.annotations, annotations),
        # The kubelet copies a capacity that it did not set itself only occasionally.
        ("status", "capacity", status.capacity, wanted.resources),
        ("status", "allocatable", status.allocatable, wanted.resources),
    )
    patch: dict[str, dict[str, Any]] = {}
    for part, name, have, want in fields:
        if changes := {key: value for key, value in want.items() if have.get(key) != value}:
            patch.setdefault(part, {})[name] = changes
    if conditions := changed_conditions(status.conditions, wanted.conditions, now):
        patch.setdefault("status", {})["conditions"] = conditions
    return patch or None


def farewell_patch(current: Node) -> dict[str, Any] | None:
    """Return the strategic merge patch that removes what an agent wrote on the node.

    The condition ``AgentSilent`` remains, because the controller owns it. The result is None if the
    node has no condition and no inventory of an agent, because then it has no labels of an agent.
    """
    spoken = [
        condition.type
        for condition in current.status.conditions
        if condition.type.startswith(CONDITION_PREFIX)
        and condition.type != ConditionType.AGENT_SILENT
    ]
    inventory = INVENTORY_ANNOTATION in current.metadata.annotations
    if not spoken and not inventory:
        return None
    nothing = Wanted({}, None, opened=True, resources={GPU_COUNT: None} if inventory else {})
    patch = node_patch(current, nothing, datetime.now(UTC)) or {}
    if spoken:
        deleted = [{"type": kind, "$patch": "delete"} for kind in spoken]
        patch.setdefault("status", {})["conditions"] = deleted
    return patch


async def publish_status(cluster: NodeApi, node: Node, wanted: Wanted, now: datetime) -> bool:
    """Record events, and patch the node if it differs from ``wanted``. Return whether it differed.

    Raises KubeError if the node cannot be patched.
    """
    about = reference_to(node)
    before = {condition.type: condition for condition in node.status.conditions}
    for condition in wanted.conditions:
        old = before.get(condition.type)
        if condition.status == "True" and (old is None or old.message != condition.message):
            cluster.record(about, condition.reason, condition.message, "Warning")
        elif condition.status == "False" and old is not None and old.status == "True":
            cluster.record(about, condition.reason, condition.message)
    patch = node_patch(node, wanted, now)
    if patch is None:
        return False
    await cluster.patch_node(patch)
    return True


async def leave(settings: AgentSettings) -> str:
    """Remove what an agent wrote on the node. Return a message, or "" if there was nothing.

    Raises:
        KubeError: the node cannot be read or written.
        TimeoutError: reading and writing takes too long.
    """
    path = f"/api/v1/nodes/{settings.node_name}"
    access = load_access(settings.kubeconfig, settings.context)
    async with asyncio.timeout(LEAVE_WITHIN_S), Connection(access) as connection:
        try:
            node = decode(await connection.get(path), NODE)
        except NotFound:
            return ""
        patch = farewell_patch(node)
        if patch is None:
            return ""
        await connection.patch(
            f"{path}/status", msgspec.json.encode(patch), content_type=STRATEGIC_MERGE_PATCH
        )
        return "removed what an agent wrote about GPUs that were removed"


def main() -> None:
    """Remove what an agent wrote on the node. Exit with status 1 if a retry is needed."""
    try:
        done = asyncio.run(leave(decode_settings(sys.argv[1])))
    except (KubeError, ConversionError, TimeoutError) as error:
        sys.exit(f"what an agent said of this node is still there: {error}")
    if done:
        sys.stderr.write(f"{done}\n")


if __name__ == "__main__":
    main()
