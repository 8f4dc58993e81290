"""Decides which mode, unit and sharing are in force, and what people are told where that differs.

A change of mode or of sharing is held while GPU pods are on the node, since their devices would vanish under them
(M12). It happens in two steps: the node is first closed to new pods, and changes once none can be on its way to it any
more, since the kubelet kills a pod for good that comes for what is no longer offered. A new memory unit takes effect
at once (U5, see ``slots``). What is not valid changes nothing and says what would be (M2, U2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gputile.api.config.v1alpha1 import Configuration, Features
from gputile.api.core import NodeCondition, node_condition
from gputile.api.quantity import decimal
from gputile.api.reasons import ConditionReason, ConditionType
from gputile.api.well_known import MODE_LABEL, MODES, PLACEMENT_LABEL, PLACEMENTS, REPLICAS_LABEL, SHARING_LABEL, Mode
from gputile.api.wording import first_of, nearest
from gputile.core.devices.inventory import MOST_REPLICAS, Gpu
from gputile.node.agent.decisions.devices.slots import UnitError, check_unit
from gputile.node.agent.state.allocation_state import ModeDecision
from gputile.node.agent.state.node_config import EffectiveMode, Sharing

# As with the pressure conditions of the kubelet, "True" is the bad news.
MODE_PENDING: Final = ConditionType.MODE_PENDING
PLACEMENT_REFUSED: Final = ConditionType.PLACEMENT_REFUSED
UNIT_REFUSED: Final = ConditionType.MEMORY_UNIT_REFUSED
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
            current, (node_condition(MODE_PENDING, "True", ConditionReason.INVALID_LABEL, str(error)), unit_condition)
        )
    disabled = _disabled(wanted.mode, configuration.features)
    if disabled is not None:
        wanted = EffectiveMode(Mode.EXCLUSIVE, unit)
    if wanted == current or before is None or (free and not gpu_pods):
        text = f"the node is in mode {wanted.mode.value}"
        told = node_condition(MODE_PENDING, "False", ConditionReason.MODE_IN_FORCE, text)
        if disabled is not None:
            told = node_condition(MODE_PENDING, "True", ConditionReason.FEATURE_DISABLED, disabled)
        return ModeDecision(wanted, (told, unit_condition))
    if gpu_pods:
        text = _held_text(current, wanted, gpu_pods)
        return ModeDecision(
            current, (node_condition(MODE_PENDING, "True", ConditionReason.PODS_ON_NODE, text), unit_condition)
        )
    text = f"{_name(current)} ends and {_name(wanted)} follows; the node takes no GPU pods for a moment"
    return ModeDecision(
        current, (node_condition(MODE_PENDING, "False", ConditionReason.CLOSING, text), unit_condition), closing=True
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
    return EffectiveMode(Mode(mode), 0, sharing, replicas)


def placement_condition(labels: Mapping[str, str]) -> NodeCondition:
    """Return whether the node's label names a way of placement; schedulers go by the configuration where not (M9)."""
    placement = labels.get(PLACEMENT_LABEL)
    if placement is not None and placement not in PLACEMENTS:
        valid = f"{', '.join(PLACEMENTS)}{nearest(placement, PLACEMENTS)}"
        text = f"the label {PLACEMENT_LABEL} is {placement!r} and is ignored; valid are {valid}"
        return node_condition(PLACEMENT_REFUSED, "True", ConditionReason.INVALID_LABEL, text)
    text = "the node's label names a way of placement, or there is none"
    return node_condition(PLACEMENT_REFUSED, "False", ConditionReason.VALID, text)


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
        return current.unit_mib, node_condition(UNIT_REFUSED, "True", ConditionReason.TOO_MANY_DEVICES, str(error))
    text = f"the memory unit is {unit_mib} MiB"
    return unit_mib, node_condition(UNIT_REFUSED, "False", ConditionReason.UNIT_IN_FORCE, text)


def _held_text(current: EffectiveMode, wanted: EffectiveMode, gpu_pods: Sequence[str]) -> str:
    names = first_of(sorted(gpu_pods), _NAMED_PODS)
    return (
        f"{_name(current)} stays in force while GPU pods are on the node: {names}; "
        f"{_name(wanted)} follows when they are gone"
    )


def _name(effective_mode: EffectiveMode) -> str:
    if effective_mode.sharing is Sharing.TIME_SLICING:
        return f"mode {effective_mode.mode.value} with {effective_mode.replicas} replicas a GPU"
    if effective_mode.sharing is Sharing.MIG:
        return f"mode {effective_mode.mode.value} with MIG"
    return f"mode {effective_mode.mode.value}"
