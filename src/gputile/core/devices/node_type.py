"""Describes the types of GPU nodes that an autoscaler can add, and which requests they serve."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gputile.api.config.autoscaling import NodeTypeConfiguration
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, NodeSpec, NodeStatus, ObjectMeta, Pod, ResourceList, Taint
from gputile.api.quantity import parse_mib
from gputile.api.well_known import (
    INVENTORY_ANNOTATION,
    ISOLATION,
    MODE_LABEL,
    MODEL_COUNT_PREFIX,
    MODEL_LABEL,
    PLACEHOLDER_LABEL,
    WHOLE_GPU,
    Mode,
)
from gputile.core.devices.inventory import (
    Gpu,
    Inventory,
    advertised_units,
    encode_inventory,
    model_label_value,
    model_labels,
    resources_for_mode,
)
from gputile.core.devices.request import Request, RequestKind
from gputile.core.refusal import NodeTypeRule, Refusal, refusal_by


def refusals_text(refusals: Mapping[str, Refusal[NodeTypeRule]]) -> str:
    """Return a text that states, for each type, why no node of the type is added."""
    whys = [f"{name}: {refusal.text}" for name, refusal in refusals.items()]
    return "; ".join(whys) or "autoscaling.nodeTypes is empty"


# The schedulerName of placeholders. No scheduler has this name.
PLACEHOLDER_SCHEDULER: Final = "gputile-placeholder"

# The amounts of resources that the configuration does not set. They never limit a pod.
_AMPLE = {"cpu": "100000", "memory": "1Pi", "ephemeral-storage": "1Pi", "pods": "1000000"}
_SERVES = {Mode.EXCLUSIVE: RequestKind.WHOLE, Mode.TOPOLOGY: RequestKind.TOPOLOGY}


@dataclass(frozen=True, slots=True)
class NodeType:
    """A type of node. A node is of the type if and only if it has the label ``name``.

    ``other_resources`` are the resources besides GPUs that the configuration sets.
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
        """The label that all nodes of the type have, as KEY=VALUE."""
        return f"{self.key}={self.value}"

    @property
    def resources(self) -> dict[str, int]:
        found = resources_for_mode(self.mode, self.gpus, self.unit_mib)
        return {name: count for name, count in found.items() if count}

    def has(self, node: Node) -> bool:
        return node.metadata.labels.get(self.key) == self.value

    def refusal(self, request: Request) -> Refusal[NodeTypeRule] | None:
        """Return why an empty node of the type could not serve the request, or None."""
        shape, units = request.shape, advertised_units(self.gpus[0], self.unit_mib)
        if shape.kind is not _SERVES.get(self.mode, RequestKind.SHARED):
            return refusal_by(NodeTypeRule.MODE, there=self.mode.value, wanted=shape.kind.value)
        if self.mode.shared and (shape.percent > 0) is not (self.mode is Mode.CORE_MEM):
            with_compute = self.mode is Mode.CORE_MEM
            rule = NodeTypeRule.WITH_COMPUTE if with_compute else NodeTypeRule.WITHOUT_COMPUTE
            return refusal_by(rule, there=self.mode.value)
        if self.mode.shared and shape.unit_mib != self.unit_mib:
            return refusal_by(NodeTypeRule.UNIT, there=self.unit_mib, wanted=shape.unit_mib)
        if shape.isolated and self.mode is Mode.SHARE:
            return refusal_by(NodeTypeRule.MODE, there=self.mode.value, wanted=ISOLATION)
        model = self.gpus[0].model  # "" if the configuration names no model, which allows all

        if shape.models and model and model_label_value(model) not in shape.models:
            return refusal_by(NodeTypeRule.LABELS)
        if shape.gpus > len(self.gpus):
            return refusal_by(NodeTypeRule.TOO_FEW, there=len(self.gpus), wanted=shape.gpus)
        if shape.mib > units * self.unit_mib:
            has = f"{units} units of {self.unit_mib} MiB"
            return refusal_by(NodeTypeRule.TOO_SMALL, there=has, wanted=shape.mib)
        return None

    def node(self, name: str) -> Node:
        """Return an empty node of the type, with the GPUs that its agent will report."""
        resources: ResourceList = {
            **_AMPLE,
            **self.other_resources,
            **{each: str(count) for each, count in self.resources.items()},
        }
        gpus = tuple(Gpu(gpu.index, f"{name}/{gpu.index}", gpu.mib, gpu.model) for gpu in self.gpus)
        inventory = Inventory(gpus=gpus, mode=self.mode.value, unit_mib=self.unit_mib)
        labels = {
            "kubernetes.io/os": "linux",
            "kubernetes.io/hostname": name,
            MODE_LABEL: self.mode.value,
        }
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
    """Return the node types of a configuration, in the order in which they are tried."""
    scaling = configuration.autoscaling
    return (
        tuple(_node_type(each, configuration.unit_mib) for each in scaling.node_types)
        if scaling.enabled
        else ()
    )


def is_placeholder(pod: Pod) -> bool:
    """Return whether a pod is a placeholder for a node to be added."""
    return (
        PLACEHOLDER_LABEL in pod.metadata.labels
        and pod.spec.scheduler_name == PLACEHOLDER_SCHEDULER
    )


def _node_type(described: NodeTypeConfiguration, unit_mib: int) -> NodeType:
    mib, labels = parse_mib(described.gpus.memory), described.labels
    counted = (
        key.removeprefix(MODEL_COUNT_PREFIX) for key in labels if key.startswith(MODEL_COUNT_PREFIX)
    )
    model = labels.get(MODEL_LABEL) or next(counted, "")
    return NodeType(
        described.key,
        described.value,
        described.mode,
        tuple(Gpu(index, f"GPU-{index}", mib, model) for index in range(described.gpus.count)),
        unit_mib,
        described.labels,
        tuple(
            Taint(key=each.key, value=each.value, effect=each.effect) for each in described.taints
        ),
        {resource: str(amount) for resource, amount in described.resources.items()},
    )
