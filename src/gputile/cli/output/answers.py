"""Defines the records that ``-o json`` prints, with camelCase keys as Kubernetes has them."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from gputile.api.old_keys import OldKeys
from gputile.tools.views.node_summaries import NodeSummary


class VersionAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """``gputile version -o json``."""

    version: Annotated[str, msgspec.Meta(description="The version of gputile.")]


class InspectAnswer(OldKeys, frozen=True, rename="camel"):
    """``gputile inspect -o json``. ``unit_mib`` is the memory unit that the table counts in."""

    unit_mib: Annotated[int, msgspec.Meta(description="The memory unit that the table counts in, MiB.")]
    nodes: Annotated[list[NodeSummary], msgspec.Meta(description="The GPU nodes.")]


class DecidedGpu(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU that a pod gets, and how much of it; ``percent`` of compute only where that is not all."""

    index: Annotated[int, msgspec.Meta(description="The number of the GPU on its node.")]
    uuid: Annotated[str, msgspec.Meta(description="The GPU's UUID.")]
    mib: Annotated[int, msgspec.Meta(description="What the pod gets of its memory, MiB.")]
    units: Annotated[int, msgspec.Meta(description="The same in memory units.")]
    percent: Annotated[
        int | UnsetType,
        msgspec.Meta(description="What it gets of its compute, per cent; absent where compute is not divided."),
    ] = UNSET


class DecisionAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What was decided about a pod; ``node`` is null where it has no place.

    ``others`` are the names of equal pods of which the same is to be said.
    """

    namespace: Annotated[str, msgspec.Meta(description="The pod's namespace.")]
    pod: Annotated[str, msgspec.Meta(description="The pod's name.")]
    node: Annotated[str | None, msgspec.Meta(description="The node, null where the pod has no place.")]
    gpus: Annotated[list[DecidedGpu], msgspec.Meta(description="The GPUs that it gets.")]
    reason: Annotated[str, msgspec.Meta(description="Why so.")]
    others: Annotated[
        list[str] | UnsetType,
        msgspec.Meta(
            description="The names of equal pods of which the same is to be said; absent where there are none."
        ),
    ] = UNSET


class FitAnswer(OldKeys, frozen=True, rename="camel", kw_only=True):
    """How many ``copies`` of ``pods`` pods fit besides, on which nodes, and why no more; null where the count ended."""

    old_keys: ClassVar[Mapping[str, str]] = {"stoppedBy": "stopped_by"}
    copies: Annotated[int, msgspec.Meta(description="How many more times the pods fit.")]
    pods: Annotated[int, msgspec.Meta(description="How many pods one copy has.")]
    nodes: Annotated[dict[str, int], msgspec.Meta(description="How many of the pods each node takes, by node.")]
    stopped_by: Annotated[str | None, msgspec.Meta(description="Why no more, null where the count ended.")]


class ComparedAnswer(OldKeys, frozen=True, rename="camel", kw_only=True):
    """The same, decided by another placement policy."""

    placement: Annotated[str, msgspec.Meta(description="The other placement policy.")]
    decisions: Annotated[list[DecisionAnswer], msgspec.Meta(description="What was decided by it.")]
    nodes: Annotated[list[NodeSummary], msgspec.Meta(description="The nodes after that.")]
    fit: Annotated[FitAnswer | UnsetType, msgspec.Meta(description="How many more pods fit then.")] = UNSET


class SimulateAnswer(OldKeys, frozen=True, rename="camel", kw_only=True):
    """``gputile simulate -o json``."""

    decisions: Annotated[list[DecisionAnswer], msgspec.Meta(description="What was decided, pod by pod.")]
    nodes: Annotated[list[NodeSummary], msgspec.Meta(description="The nodes after that.")]
    fit: Annotated[FitAnswer | UnsetType, msgspec.Meta(description="With --fit: how many more pods fit.")] = UNSET
    compared: Annotated[
        ComparedAnswer | UnsetType, msgspec.Meta(description="With --compare: the same by another policy.")
    ] = UNSET
