"""Defines the section ``autoscaling`` of the configuration: which nodes may be requested."""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gputile.api.config.section import ConfigurationError, LongSeconds, Section, memory_mib
from gputile.api.quantity import Amount, MemorySize, QuantityError, parse_amount
from gputile.api.well_known import GPU_RESOURCES, LARGEST_UNIT_MIB, MODE_LABEL, Mode
from gputile.api.wording import described, matching

# Kubernetes, "Labels and Selectors"
_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}"
_LABEL_VALUE = rf"({_LABEL_NAME})?"
_MOST_OFFERED = 2**53  # the largest integer that is exact in every JSON reader


class NodeTypeGpus(Section, frozen=True, kw_only=True):
    """The GPUs of each node of a type."""

    count: Annotated[int, described("Number of GPUs on each node, 1 to 64.", ge=1, le=64)] = 1
    memory: Annotated[
        MemorySize,
        described(
            "Memory of each GPU, as `nvidia-smi --query-gpu=memory.total` prints it, such as "
            "`23028MiB`."
        ),
    ]


class NodeTaint(Section, frozen=True, kw_only=True):
    """A taint of a type's nodes, which also have the taint ``nvidia.com/gpu:NoSchedule``."""

    key: Annotated[str, described("The key of the taint.", min_length=1)]
    value: Annotated[str, described("The value of the taint.")] = ""
    effect: Annotated[Literal["NoSchedule", "NoExecute"], described("The effect of the taint.")] = (
        "NoSchedule"
    )


class NodeTypeConfiguration(Section, frozen=True, kw_only=True):
    """A type of GPU nodes that the cluster's autoscaler can add."""

    label: Annotated[
        str,
        matching(
            f"{_LABEL_KEY}={_LABEL_NAME}",
            "KEY=VALUE of a node label",
            "A label, as `KEY=VALUE`, that only the nodes of this type have. The provider's label "
            "of a node pool is such a label.",
        ),
    ]
    gpus: Annotated[NodeTypeGpus, described("The GPUs of each node.")]
    mode: Annotated[
        Mode,
        described(
            "The mode that the nodes have when they join the cluster, as in the node label "
            "`ack.node.gpu.schedule`."
        ),
    ] = Mode.EXCLUSIVE
    labels: Annotated[
        dict[
            Annotated[str, Meta(extra_json_schema={"pattern": f"^{_LABEL_KEY}$"})],
            Annotated[str, Meta(extra_json_schema={"pattern": f"^{_LABEL_VALUE}$"})],
        ],
        described("Other labels of the nodes when they join. Pods may select nodes by them."),
    ] = msgspec.field(default_factory=dict)
    taints: Annotated[
        tuple[NodeTaint, ...],
        described("Taints of the nodes when they join, besides `nvidia.com/gpu:NoSchedule`."),
    ] = ()
    resources: Annotated[
        dict[str, Amount | Annotated[int, Meta(ge=0, le=_MOST_OFFERED)]],
        described(
            "Other resources that each node offers, such as `vpc.amazonaws.com/efa: 4` or "
            "`hugepages-2Mi: 4Gi`. CPU, memory and ephemeral storage are assumed to be sufficient "
            "unless they are listed here."
        ),
    ] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """The label's key."""
        return self.label.partition("=")[0]

    @property
    def value(self) -> str:
        """The label's value."""
        return self.label.partition("=")[2]


class AutoscalingConfiguration(Section, frozen=True):
    """How the controller requests nodes that the autoscaler does not add by itself (U8)."""

    enabled: Annotated[
        bool,
        described(
            "Whether the controller creates placeholder pods. For these pods the cluster's "
            "autoscaler adds GPU nodes that it would not add by itself. Admission then also "
            "excludes GPU pods from the node types that they cannot fit."
        ),
    ] = False
    most_nodes: Annotated[
        int,
        described(
            "The largest number of nodes that are requested at the same time, 1 to 100.",
            ge=1,
            le=100,
        ),
    ] = 10
    wait_seconds: Annotated[
        LongSeconds,
        described(
            "The time in seconds within which a requested node must join the cluster, 10 to 86400. "
            "After that, the node's agent has the same time to report GPUs."
        ),
    ] = 900
    node_types: Annotated[
        tuple[NodeTypeConfiguration, ...],
        described("The types of GPU nodes that the autoscaler can add, the preferred type first."),
    ] = ()

    def check(self, unit_mib: int, unit: str) -> None:
        """Check the node types against the memory unit.

        ``unit_mib`` is the memory unit in MiB, and ``unit`` is its text in the file. Raises
        ConfigurationError if a value is not valid, or two node types have the same label.
        """
        labels: set[str] = set()
        for i, each in enumerate(self.node_types):
            where = f"autoscaling.nodeTypes[{i}]"
            if each.label in labels:
                raise ConfigurationError(
                    f"{where}.label: {each.label} is also the label of another node type: give "
                    f"each node type its own label"
                )
            labels.add(each.label)
            mib = memory_mib(f"{where}.gpus.memory", each.gpus.memory)
            if mib < unit_mib:
                raise ConfigurationError(
                    f"{where}.gpus.memory is {each.gpus.memory}: "
                    f"a GPU is smaller than one unit of {unit}"
                )
            if mib > LARGEST_UNIT_MIB:
                raise ConfigurationError(
                    f"{where}.gpus.memory is {each.gpus.memory}: a GPU has at most "
                    f"{LARGEST_UNIT_MIB} MiB"
                )
            _check_labels(where, each)
            _check_resources(where, each)


def _check_resources(where: str, described: NodeTypeConfiguration) -> None:
    for resource, amount in described.resources.items():
        if resource in GPU_RESOURCES:
            raise ConfigurationError(
                f"{where}.resources has {resource}: remove it, because gpus and mode define it"
            )
        try:
            parse_amount(amount)
        except QuantityError as error:
            raise ConfigurationError(f"{where}.resources.{resource}: {error}") from error


def _check_labels(where: str, described: NodeTypeConfiguration) -> None:
    """Check the labels of a node type. Labels must not contradict ``label`` or ``mode``."""
    decided = {
        described.key: ("label", described.value),
        MODE_LABEL: ("mode", described.mode.value),
    }
    for key, value in described.labels.items():
        if not re.fullmatch(_LABEL_KEY, key):
            raise ConfigurationError(f"{where}.labels: {key[:63]!r} is not a valid label key")
        if not re.fullmatch(_LABEL_VALUE, value):
            raise ConfigurationError(
                f"{where}.labels.{key} is {value[:64]!r}, which is not a valid label value"
            )
        field, expected = decided.get(key, ("", value))
        if value != expected:
            raise ConfigurationError(
                f"{where}.labels.{key} is {value}, but {field} requires {expected}"
            )
