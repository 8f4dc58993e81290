"""Finds what is wrong with a GPU node that its own agent cannot tell, as it is absent or silent.

The agent itself says what it holds back or refuses (modes, units, GPUs, drivers). Where it is silent nobody speaks:
its inventory stays on the node, while the kubelet, which noticed that the device plugin is gone, offers nothing.
That is seen from the Node object alone, without any clock of the agent's.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, changed_conditions, node_condition
from gputile.api.quantity import count_of
from gputile.api.reasons import ConditionReason, ConditionType
from gputile.api.well_known import CONDITION_PREFIX, INVENTORY_ANNOTATION, MODE_LABEL, MODES, Mode
from gputile.api.wording import nearest
from gputile.core.devices.inventory import Inventory, InventoryError, decode_inventory, resources_for_mode, unknown_mode
from gputile.core.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class NodeDiagnosis:
    """What is wrong: a reason, and a sentence. ``at_once``: report now; waiting cannot clear it."""

    reason: ConditionReason
    message: str
    at_once: bool = False


def diagnose(node: Node, configuration: Configuration) -> NodeDiagnosis | None:
    """Return what is wrong with a node that its agent does not tell, None where nothing is."""
    text = node.metadata.annotations.get(INVENTORY_ANNOTATION)
    label = node.metadata.labels.get(MODE_LABEL)
    if text is None:
        return None if label is None or _has_spoken(node) else _no_agent(label)
    try:
        inventory = decode_inventory(text)
    except InventoryError as error:
        return NodeDiagnosis(
            ConditionReason.INVENTORY_UNREADABLE, f"the annotation {INVENTORY_ANNOTATION} cannot be read: {error}", True
        )
    mode = inventory.mode or label or Mode.EXCLUSIVE.value
    if mode not in MODES and inventory.mode:
        return NodeDiagnosis(
            ConditionReason.INVENTORY_UNREADABLE, f"the annotation {INVENTORY_ANNOTATION} {unknown_mode(mode)}", True
        )
    if mode not in MODES:
        return _no_agent(mode)
    return _offers_nothing(node, inventory, Mode(mode), inventory.unit_mib or configuration.unit_mib)


def _has_spoken(node: Node) -> bool:
    """Return whether an agent tells the node's conditions: it leaves out the inventory where others hand out GPUs."""
    return any(
        c.type.startswith(CONDITION_PREFIX) and c.type != ConditionType.AGENT_SILENT for c in node.status.conditions
    )


def _no_agent(label: str) -> NodeDiagnosis:
    if label not in MODES:
        message = f"the label {MODE_LABEL} is {label!r}; valid are {', '.join(MODES)}{nearest(label, MODES)}"
        return NodeDiagnosis(ConditionReason.INVALID_LABEL, message, at_once=True)
    return NodeDiagnosis(
        ConditionReason.NO_AGENT,
        f"the label {MODE_LABEL} asks for mode {label}, and no gputile agent has reported the node's GPUs: none runs "
        f"there, or it rests since it finds no NVIDIA GPU",
    )


def _offers_nothing(node: Node, inventory: Inventory, mode: Mode, unit_mib: int) -> NodeDiagnosis | None:
    expected = {name: n for name, n in resources_for_mode(mode, inventory.gpus, unit_mib).items() if n}
    if not expected or any(count_of(node.status.allocatable, resource) for resource in expected):
        return None
    healthy = sum(gpu.healthy for gpu in inventory.gpus)
    return NodeDiagnosis(
        ConditionReason.NOTHING_OFFERED,
        f"the node's agent reported {healthy} GPUs in mode {mode.value}, and its kubelet offers no {min(expected)}: "
        f"the agent does not run, or its device plugin is not registered",
    )


def condition_patch(node: Node, found: NodeDiagnosis | None, now: datetime) -> dict[str, Any] | None:
    """Return the strategic merge patch of the node's status that says what was found; None where it is said already.

    A node that never had the condition is not given one that says that all is well.
    """
    silent = ConditionType.AGENT_SILENT
    if found is not None:
        wanted = node_condition(silent, "True", found.reason, found.message)
    elif any(each.type == silent for each in node.status.conditions):
        wanted = node_condition(silent, "False", ConditionReason.AGENT_HEARD, "")
    else:
        return None
    changed = changed_conditions(node.status.conditions, [wanted], now)
    return {"status": {"conditions": changed}} if changed else None


def units_in_force(ledger: Ledger) -> Counter[int]:
    """Return how many GPU nodes have which memory unit in force, in MiB: how far a new unit has come."""
    infos = (info for _, info in ledger.nodes() if info.inventory.gpus)
    return Counter(info.inventory.unit_mib or info.configured_unit_mib for info in infos)


class SilentNodes:
    """Remembers since when nodes have had the condition gputile.io/AgentSilent, as seen whenever metrics are read."""

    def __init__(self, nodes: Mapping[str, Node], unix_time: Callable[[], float]) -> None:
        self._nodes, self._unix_time = nodes, unix_time
        self._since: dict[str, float] = {}

    def since(self) -> list[float]:
        """Return since when each silent node has been silent, Unix time in seconds."""
        now, silent = self._unix_time(), ConditionType.AGENT_SILENT
        self._since = {
            name: self._since.get(name, now)
            for name, node in self._nodes.items()
            if any(each.type == silent and each.status == "True" for each in node.status.conditions)
        }
        return list(self._since.values())
