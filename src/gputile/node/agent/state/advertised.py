"""Keeps what is in force on the node and what was last told of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gputile.api.core import NodeCondition
from gputile.node.agent.state.node_config import EffectiveMode


@dataclass(frozen=True, slots=True)
class ModeDecision:
    """What is in force from now on, and what the node says about what is not.

    ``closing`` says that the node is to take no new pods: a change is about to happen.
    """

    effective_mode: EffectiveMode
    conditions: tuple[NodeCondition, ...]
    closing: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedMemory:
    """What pods are still to get of a GPU: IDs, and what these are worth in MiB."""

    ids: int = 0
    mib: int = 0


@dataclass(slots=True)
class Advertised:
    """What the node advertises now. ``decided`` is what is in force, ``other_plugin`` what shows that another
    plugin serves the node instead.

    ``effective_mode`` is what a restart goes on with: None until the node's labels were known once. ``registered`` are
    the resources that agents before this one have served. The kubelet was told of ``resources``, with the IDs that pods
    were ``expected`` to get; ``mixed`` says that pods of several memory units hold some. ``unsaved`` is set while the
    checkpoint lacks it. ``closed_since`` is when the node was first seen to take no more pods before a change of mode.
    """

    decided: ModeDecision
    effective_mode: EffectiveMode | None = None
    registered: tuple[str, ...] = ()
    other_plugin: str | None = None
    resources: tuple[str, ...] = ()
    expected: Mapping[int, ExpectedMemory] = field(default_factory=dict)
    mixed: bool = True
    unsaved: bool = False
    closed_since: float | None = None
