"""``gputile status``: whether the installation is deployed, component by component, and how each node is set (U11)."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from gputile.api.core import Node
from gputile.api.wellknown import INVENTORY_ANNOTATION
from gputile.api.workloads import DaemonSet, Deployment, Event, RunningPod
from gputile.device.inventory import Inventory, InventoryError, decode_inventory
from gputile.views.inspect import unit_name
from gputile.views.rollout import COMPONENT_LABEL, Component, State, component_of

_CONDITIONS = "gputile.io/"


class Phase(StrEnum):
    """What the installation is, in the documents' words; and what they have no word for."""

    DEPLOYED = "Deployed"
    DEPLOYING = "Deploying"
    FAILED = "Failed"
    NOT_INSTALLED = "NotInstalled"


class NodeState(msgspec.Struct, frozen=True, rename="camel"):
    """One GPU node: the mode and unit that are in force there, and what holds or ails it, in its own words.

    ``mode`` "" and ``unit_mib`` 0: its agent has reported none.
    """

    name: str
    agent_ready: bool
    mode: str
    unit_mib: int
    gpus: int
    problems: list[str]


class Installation(msgspec.Struct, frozen=True, rename="camel"):
    """The whole installation. ``unit_mib`` is the configured memory unit, 0 where there is no configuration."""

    phase: Phase
    unit_mib: int
    components: list[Component]
    nodes: list[NodeState]


def assess(
    workloads: Sequence[Deployment | DaemonSet],
    pods: Sequence[RunningPod],
    events: Sequence[Event],
    nodes: Iterable[Node],
    unit_mib: int,
) -> Installation:
    """Return the state of the installation with these workloads and pods."""
    components = sorted((component_of(w, _pods_of(w, pods), events) for w in workloads), key=lambda c: c.name)
    agents = _agents(pods)
    states = {component.state for component in components}
    phase = Phase.DEPLOYED
    if not components:
        phase = Phase.NOT_INSTALLED
    elif State.FAILED in states:
        phase = Phase.FAILED
    elif State.DEPLOYING in states:
        phase = Phase.DEPLOYING
    served = [
        node for node in nodes if node.metadata.name in agents or INVENTORY_ANNOTATION in node.metadata.annotations
    ]
    return Installation(
        phase, unit_mib, components, sorted((_node(node, agents) for node in served), key=lambda n: n.name)
    )


def to_builtins(installation: Installation) -> Any:
    """Return the installation as what JSON is made of."""
    return msgspec.to_builtins(installation)


def table(installation: Installation) -> str:
    """Return the installation as people read it."""
    bad = [component.name for component in installation.components if component.state is not State.READY]
    lines = [f"gputile: {installation.phase}{': ' if bad else ''}{', '.join(bad)}"]
    if installation.components:
        rows: list[tuple[str, ...]] = [("COMPONENT", "READY", "STATE", "REASON")]
        rows += [(c.name, f"{c.ready}/{c.wanted}", c.state.value, c.reason) for c in installation.components]
        lines += ["", *_aligned(rows)]
    if installation.nodes:
        heading = ("NODE", "AGENT", "MODE", "UNIT", "GPUS", "PROBLEMS")
        lines += ["", *_aligned([heading, *map(_node_row, installation.nodes)])]
        other = [n for n in installation.nodes if n.unit_mib not in (0, installation.unit_mib)]
        if installation.unit_mib and other:
            rest = "1 node is" if len(other) == 1 else f"{len(other)} nodes are"
            lines += ["", f"The unit is {_unit(installation.unit_mib)}; {rest} not there yet."]
    return "\n".join(lines) + "\n"


def _agents(pods: Iterable[RunningPod]) -> dict[str, bool]:
    """Return whether each node's agent is ready: one of its pods, of which there are two while a new one starts."""
    ready: dict[str, bool] = {}
    for pod in pods:
        if pod.metadata.labels.get(COMPONENT_LABEL) == "agent":
            ready[pod.spec.node_name] = ready.get(pod.spec.node_name, False) or pod.ready
    return ready


def _pods_of(workload: Deployment | DaemonSet, pods: Iterable[RunningPod]) -> list[RunningPod]:
    name = workload.metadata.labels.get(COMPONENT_LABEL)
    return [pod for pod in pods if name and pod.metadata.labels.get(COMPONENT_LABEL) == name]


def _node(node: Node, agents: dict[str, bool]) -> NodeState:
    problems = [f"{c.reason}: {c.message}" for c in node.status.conditions if _is_bad(c.type, c.status)]
    inventory = Inventory(cards=())
    try:
        inventory = decode_inventory(node.metadata.annotations[INVENTORY_ANNOTATION])
    except KeyError:
        problems.append("its agent has reported no GPUs")
    except InventoryError as error:
        problems.append(f"its annotation {INVENTORY_ANNOTATION} cannot be read: {error}")
    return NodeState(
        name=node.metadata.name,
        agent_ready=agents.get(node.metadata.name, False),
        mode=inventory.mode,
        unit_mib=inventory.unit_mib,
        gpus=len(inventory.cards),
        problems=problems,
    )


def _node_row(node: NodeState) -> tuple[str, ...]:
    agent = "ready" if node.agent_ready else "not ready"
    return node.name, agent, node.mode or "-", _unit(node.unit_mib), str(node.gpus), "; ".join(node.problems)


def _is_bad(kind: str, status: str) -> bool:
    return kind.startswith(_CONDITIONS) and status == "True"


def _unit(mib: int) -> str:
    return {0: "-", 1024: "1GiB"}.get(mib) or unit_name(mib)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) + 2 for i in range(len(rows[0]))]
    return ["".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
