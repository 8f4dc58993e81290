"""Finds what is wrong with a GPU node that its own agent cannot tell, as it is absent or silent.

The agent itself says what it holds back or refuses (modes, units, GPUs, drivers). Where it is silent nobody speaks:
its inventory stays on the node, while the kubelet, which noticed that the device plugin is gone, offers nothing.
That is seen from the Node object alone, without any clock of the agent's.
"""

from collections import Counter
from collections.abc import Callable
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
from gputile.kube.objects import Applied, Deleted, Replaced, WatchEvent


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


class UnitsInForce:
    """How many nodes have which memory unit in force, in MiB: how far a new unit has come (U5, U9).

    It is counted as nodes change, so that nobody who asks waits until thousands of inventories are read.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.counts: Counter[int] = Counter()
        self._configuration = configuration
        self._read: dict[str, tuple[str, int | None]] = {}  # node -> its inventory's text, and the unit that it tells

    def put(self, node: Node) -> None:
        name, text = node.metadata.name, node.metadata.annotations.get(INVENTORY_ANNOTATION)
        if name in self._read and self._read[name][0] == text:
            return
        self.drop(name)
        if text is None:
            return
        try:
            unit: int | None = decode_inventory(text).unit_mib or self._configuration.unit_mib
        except InventoryError:
            unit = None
        self._read[name] = text, unit
        if unit is not None:
            self.counts[unit] += 1

    def drop(self, name: str) -> None:
        _, unit = self._read.pop(name, ("", None))
        if unit is not None:
            self.counts[unit] -= 1
            if not self.counts[unit]:
                del self.counts[unit]


class SilentNodes:
    """The nodes with the condition gputile.io/AgentSilent. ``unix_time`` tells the time, in seconds."""

    def __init__(self, unix_time: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self._since: dict[str, float] = {}

    def node_event(self, event: WatchEvent[Node]) -> None:
        match event:
            case Applied(node):
                self._put(node)
            case Deleted(node):
                self._since.pop(node.metadata.name, None)
            case Replaced(nodes, unreadable):
                there = {node.metadata.name for node in nodes}.union(each.name for each in unreadable)
                self._since = {name: since for name, since in self._since.items() if name in there}
                for node in nodes:
                    self._put(node)

    def count(self) -> int:
        return len(self._since)

    def since(self) -> float:
        """Return since when the node has been silent that has been longest, Unix time in seconds; 0 where none is."""
        return min(self._since.values(), default=0.0)

    def _put(self, node: Node) -> None:
        if any(each.type == ConditionType.AGENT_SILENT and each.status == "True" for each in node.status.conditions):
            self._since.setdefault(node.metadata.name, self._unix_time())
        else:
            self._since.pop(node.metadata.name, None)
