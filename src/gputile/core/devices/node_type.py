"""Describes GPU nodes that an autoscaler can add: what an empty one takes, and why not a pod."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gputile.api.config.v1alpha1 import Configuration, NodeTypeConfiguration
from gputile.api.core import Node, NodeSpec, NodeStatus, ObjectMeta, Pod, ResourceList, Taint
from gputile.api.quantity import parse_mib
from gputile.api.well_known import (
    INVENTORY_ANNOTATION,
    MODE_LABEL,
    PLACEHOLDER_LABEL,
    WHOLE_GPU,
    Mode,
)
from gputile.core.devices.inventory import (
    Gpu,
    Inventory,
    advertised_units,
    encode_inventory,
    model_labels,
    resources_for_mode,
)
from gputile.core.devices.request import Request, RequestKind


class NodeTypeRule(Enum):
    """The rule that a type breaks for a pod, with its wording."""

    MODE = "its mode {offered} does not serve {requested}"
    WITHOUT_COMPUTE = "its mode {offered} serves GPU memory alone"
    WITH_COMPUTE = "its mode {offered} serves GPU memory together with compute"
    UNIT = "its memory unit is {offered} MiB; the pod counts in {requested} MiB"
    TOO_FEW = "it has {offered} GPUs; the pod needs {requested}"
    TOO_SMALL = "its GPUs have {offered}; the pod needs {requested} MiB on one GPU"
    LABELS = "its labels or taints are not those that the pod asks for"
    TOO_FEW_RESOURCES = (
        "a node as it is described in autoscaling.nodeTypes could not take the pod if empty: {requested}"
    )
    OTHER_PODS = "the pod wants, or does not want, other pods on its node"
    NO_INVENTORY = "node {offered} has this label, and its agent has reported no GPU; another one is asked for later"
    NOT_USABLE = "node {offered} has this label, and its GPUs cannot all be used; another one is asked for later"
    WENT_AWAY = "node {offered} went away before a pod had got its GPUs; another one is asked for later"
    NO_PLACEHOLDER = (
        "no placeholder could be created that asks for such a node: the events of Jobs in gputile's namespace, and the "
        "controller's log, say why; it is tried again later"
    )
    PAUSED = "such a node was asked for, and none came; it is asked for later"
    NOT_AS_DESCRIBED = "node {offered} has this label, and could not take the pod if empty"
    TOO_LITTLE = "node {offered} has this label, and could not take the pod if empty: {requested}"


_PAUSES: Final = (
    NodeTypeRule.PAUSED,
    NodeTypeRule.NO_PLACEHOLDER,
    NodeTypeRule.NO_INVENTORY,
    NodeTypeRule.NOT_USABLE,
    NodeTypeRule.WENT_AWAY,
)


@dataclass(frozen=True, slots=True)
class NodeTypeRefusal:
    """A rule that a type breaks for a pod: what is ``offered``, which may be a node's name, and what is requested."""

    rule: NodeTypeRule
    offered: str | int = ""
    requested: str | int = ""

    @property
    def text(self) -> str:
        return self.rule.value.format(offered=self.offered, requested=self.requested)

    @property
    def passes(self) -> bool:
        """Whether a node of the type is asked for later, though none of use has come lately."""
        return self.rule in _PAUSES


def worded(refusals: Mapping[str, NodeTypeRefusal]) -> str:
    """Return in words why none of the types is added, each by its name."""
    whys = [f"{name}: {refusal.text}" for name, refusal in refusals.items()]
    return "; ".join(whys) or "autoscaling.nodeTypes is empty"


PLACEHOLDER_SCHEDULER: Final = "gputile-placeholder"  # the schedulerName of placeholders; no scheduler has that name

# Where the configuration says nothing of them, they decide nothing.
_AMPLE = {"cpu": "100000", "memory": "1Pi", "ephemeral-storage": "1Pi", "pods": "1000000"}
_SERVES = {Mode.EXCLUSIVE: RequestKind.WHOLE, Mode.TOPOLOGY: RequestKind.TOPOLOGY}


@dataclass(frozen=True, slots=True)
class NodeType:
    """A type of node. ``name`` is its label as KEY=VALUE; nodes with this label, and no others, are of the type.

    ``other_resources`` are what a node offers beside GPUs, as far as somebody has said so.
    """

    key: str
    value: str
    mode: Mode
    gpus: tuple[Gpu, ...]
    unit_mib: int
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    other_resources: Mapping[str, str]

    @property
    def name(self) -> str:
        """The label that all nodes of the type have."""
        return f"{self.key}={self.value}"

    @property
    def resources(self) -> dict[str, int]:
        found = resources_for_mode(self.mode, self.gpus, self.unit_mib)
        return {name: count for name, count in found.items() if count}

    def has(self, node: Node) -> bool:
        return node.metadata.labels.get(self.key) == self.value

    def refusal(self, request: Request) -> NodeTypeRefusal | None:
        """Return why an empty node of the type could not take the request, None where it could."""
        shape, units = request.shape, advertised_units(self.gpus[0], self.unit_mib)
        if shape.kind is not _SERVES.get(self.mode, RequestKind.SHARED):
            return NodeTypeRefusal(NodeTypeRule.MODE, self.mode.value, shape.kind.value)
        if self.mode.shared and (shape.percent > 0) is not (self.mode is Mode.CORE_MEM):
            with_compute = self.mode is Mode.CORE_MEM
            rule = NodeTypeRule.WITH_COMPUTE if with_compute else NodeTypeRule.WITHOUT_COMPUTE
            return NodeTypeRefusal(rule, self.mode.value)
        if self.mode.shared and shape.unit_mib != self.unit_mib:
            return NodeTypeRefusal(NodeTypeRule.UNIT, self.unit_mib, shape.unit_mib)
        if shape.gpus > len(self.gpus):
            return NodeTypeRefusal(NodeTypeRule.TOO_FEW, len(self.gpus), shape.gpus)
        if shape.mib > units * self.unit_mib:
            return NodeTypeRefusal(NodeTypeRule.TOO_SMALL, f"{units} units of {self.unit_mib} MiB", shape.mib)
        return None

    def node(self, name: str) -> Node:
        """Return an empty node of the type, as the cluster sees it once its agent has reported its GPUs."""
        resources: ResourceList = {
            **_AMPLE,
            **self.other_resources,
            **{each: str(count) for each, count in self.resources.items()},
        }
        gpus = tuple(Gpu(gpu.index, f"{name}/{gpu.index}", gpu.mib) for gpu in self.gpus)
        inventory = Inventory(gpus=gpus, mode=self.mode.value, unit_mib=self.unit_mib)
        labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name, MODE_LABEL: self.mode.value}
        return Node(
            metadata=ObjectMeta(
                name=name,
                labels={**model_labels(gpus), **labels, **self.labels, self.key: self.value},
                annotations={INVENTORY_ANNOTATION: encode_inventory(inventory)},
            ),
            spec=NodeSpec(taints=(Taint(key=WHOLE_GPU, effect="NoSchedule"), *self.taints)),
            status=NodeStatus(capacity=resources, allocatable=resources),
        )


def node_types_of(configuration: Configuration) -> tuple[NodeType, ...]:
    """Return the node types of a configuration, those that are tried first in front; none where it is switched off."""
    scaling = configuration.autoscaling
    return tuple(_node_type(each, configuration.unit_mib) for each in scaling.node_types) if scaling.enabled else ()


def is_placeholder(pod: Pod) -> bool:
    """Return whether a pod stands for a node that the autoscaler is asked for, whoever has created it."""
    return PLACEHOLDER_LABEL in pod.metadata.labels and pod.spec.scheduler_name == PLACEHOLDER_SCHEDULER


def _node_type(described: NodeTypeConfiguration, unit_mib: int) -> NodeType:
    mib = parse_mib(described.gpus.memory)
    return NodeType(
        described.key,
        described.value,
        described.mode,
        tuple(Gpu(index, f"GPU-{index}", mib) for index in range(described.gpus.count)),
        unit_mib,
        described.labels,
        tuple(Taint(key=each.key, value=each.value, effect=each.effect) for each in described.taints),
        {resource: str(amount) for resource, amount in described.resources.items()},
    )
