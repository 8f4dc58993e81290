"""Defines the section ``autoscaling`` of the configuration: the nodes that may be requested."""

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
    """The GPUs of one node of a type."""

    count: Annotated[int, described("Number of GPUs on each node; 1 to 64.", ge=1, le=64)] = 1
    memory: Annotated[
        MemorySize,
        described(
            "Memory of each GPU, as `nvidia-smi --query-gpu=memory.total` prints it, such as "
            "`23028MiB`."
        ),
    ]


class NodeTaint(Section, frozen=True, kw_only=True):
    """A taint of the nodes of a type, in addition to ``nvidia.com/gpu:NoSchedule``."""

    key: Annotated[str, described("The key of the taint.", min_length=1)]
    value: Annotated[str, described("The value of the taint.")] = ""
    effect: Annotated[Literal["NoSchedule", "NoExecute"], described("The effect of the taint.")] = (
        "NoSchedule"
    )


class NodeTypeConfiguration(Section, frozen=True, kw_only=True):
    """GPU nodes that the cluster's autoscaler can add."""

    label: Annotated[
        str,
        matching(
            f"{_LABEL_KEY}={_LABEL_NAME}",
            "KEY=VALUE of a node label",
            "A label, as `KEY=VALUE`, that the nodes of this type have and no others, such as the "
            "provider's label of their node pool.",
        ),
    ]
    gpus: Annotated[NodeTypeGpus, described("The GPUs of each node.")]
    mode: Annotated[
        Mode,
        described(
            "The mode with which the nodes join, as in the node label `ack.node.gpu.schedule`."
        ),
    ] = Mode.EXCLUSIVE
    labels: Annotated[
        dict[
            Annotated[str, Meta(extra_json_schema={"pattern": f"^{_LABEL_KEY}$"})],
            Annotated[str, Meta(extra_json_schema={"pattern": f"^{_LABEL_VALUE}$"})],
        ],
        described("Other labels that the nodes join with. Pods may select nodes by them."),
    ] = msgspec.field(default_factory=dict)
    taints: Annotated[
        tuple[NodeTaint, ...],
        described("Taints that the nodes join with, in addition to `nvidia.com/gpu:NoSchedule`."),
    ] = ()
    resources: Annotated[
        dict[str, Amount | Annotated[int, Meta(ge=0, le=_MOST_OFFERED)]],
        described(
            "Other resources that each node offers, such as `vpc.amazonaws.com/efa: 4` or "
            "`hugepages-2Mi: 4Gi`. CPU, "
            "memory and ephemeral storage are assumed to suffice unless they are listed here."
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
    """Requests for nodes that the cluster's autoscaler does not add by itself (U8)."""

    enabled: Annotated[
        bool,
        described(
            "Whether the controller creates placeholder pods, so that the cluster's autoscaler "
            "adds GPU nodes that it would not add by itself. Admission then also keeps GPU pods "
            "off node types that they could never fit."
        ),
    ] = False
    most_nodes: Annotated[
        int,
        described(
            "The largest number of nodes that are requested at the same time; 1 to 100.",
            ge=1,
            le=100,
        ),
    ] = 10
    wait_seconds: Annotated[
        LongSeconds,
        described(
            "The time in seconds within which a requested node has to join, and after that the "
            "time within which its agent has to report GPUs; 10 to 86400."
        ),
    ] = 900
    node_types: Annotated[
        tuple[NodeTypeConfiguration, ...],
        described("The types of GPU nodes that the autoscaler can add, the preferred type first."),
    ] = ()

    def check(self, unit_mib: int, unit: str) -> None:
        """Check the node types; the memory unit is ``unit_mib``, written as ``unit``.

        Raises:
            ConfigurationError: a value is not valid, or two node types have the same label.
        """
        labels: set[str] = set()
        for i, each in enumerate(self.node_types):
            where = f"autoscaling.nodeTypes[{i}]"
            if each.label in labels:
                raise ConfigurationError(
                    f"{where}.label: {each.label} is that of another node type: give each its own"
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
                    f"{where}.gpus.memory is {each.gpus.memory}: a GPU has {LARGEST_UNIT_MIB} MiB "
                    f"at most"
                )
            _check_labels(where, each)
            _check_resources(where, each)


def _check_resources(where: str, described: NodeTypeConfiguration) -> None:
    for resource, amount in described.resources.items():
        if resource in GPU_RESOURCES:
            raise ConfigurationError(
                f"{where}.resources has {resource}: what the GPUs offer follows from gpus and mode"
            )
        try:
            parse_amount(amount)
        except QuantityError as error:
            raise ConfigurationError(f"{where}.resources.{resource}: {error}") from error


def _check_labels(where: str, described: NodeTypeConfiguration) -> None:
    """Check the labels of a node type. Other fields determine some of them."""
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
                f"{where}.labels.{key} is {value}, and {field} says {expected}"
            )
