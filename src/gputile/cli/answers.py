"""What ``-o json`` of the commands prints, as records: keys are those of Kubernetes, camelCase."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from gputile.api.old_keys import OldKeys
from gputile.tools.simulator.explanation import GpuReport
from gputile.tools.simulator.remedies import Remedy
from gputile.tools.views.node_summaries import NodeSummary


class VersionAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """``gputile version -o json``."""

    version: str


class InspectAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """``gputile inspect -o json``. ``unit_mib`` is the memory unit that the table counts in."""

    unit_mib: int
    nodes: list[NodeSummary]


class ExplainedNode(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A node, and what it says to the pod: "" where nothing stands against it.

    ``in_tree`` is what kube-scheduler's own rules say, ``gpu`` what the GPUs say. ``lasting`` is whether an empty node
    would say so, too.
    """

    name: str
    in_tree: str
    gpu: str
    lasting: bool
    unit_mib: int
    cards: list[GpuReport]
    fits: bool


class ExplainAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """``gputile explain POD -o json``. ``changes`` are changes each of which would be enough by itself."""

    namespace: str
    pod: str
    state: str
    node: str | None
    text: str
    nodes: list[ExplainedNode]
    changes: list[Remedy]


class DecidedGpu(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU that a pod gets, and how much of it; ``percent`` of compute only where that is not all."""

    index: int
    uuid: str
    mib: int
    units: int
    percent: int | UnsetType = UNSET


class Decision(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What was decided about a pod; ``node`` is null where it has no place.

    ``others`` are the names of equal pods of which the same is to be said.
    """

    namespace: str
    pod: str
    node: str | None
    gpus: list[DecidedGpu]
    reason: str
    others: list[str] | UnsetType = UNSET


class FitAnswer(OldKeys, frozen=True, rename="camel", kw_only=True):
    """How many ``copies`` of ``pods`` pods fit besides, on which nodes, and why no more; null where the count ended."""

    old_keys: ClassVar[Mapping[str, str]] = {"stoppedBy": "stopped_by"}
    copies: int
    pods: int
    nodes: dict[str, int]
    stopped_by: str | None


class ComparedAnswer(OldKeys, frozen=True, rename="camel", kw_only=True):
    """The same, decided by another placement policy."""

    placement: str
    decisions: list[Decision]
    nodes: list[NodeSummary]
    fit: FitAnswer | UnsetType = UNSET


class SimulateAnswer(OldKeys, frozen=True, rename="camel", kw_only=True):
    """``gputile simulate -o json``."""

    decisions: list[Decision]
    nodes: list[NodeSummary]
    fit: FitAnswer | UnsetType = UNSET
    compared: ComparedAnswer | UnsetType = UNSET
