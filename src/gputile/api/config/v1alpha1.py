"""Defines the configuration file with defaults and validation (``gputile.io/v1alpha1``)."""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gputile.api.conversion import ConversionError, convert
from gputile.api.core import Pod
from gputile.api.quantity import (
    MOST_WEIGHT,
    Amount,
    MemorySize,
    QuantityError,
    parse_amount,
    parse_mib,
)
from gputile.api.well_known import (
    GPU_RESOURCES,
    LARGEST_UNIT_MIB,
    MODE_LABEL,
    POLICIES,
    SMALLEST_UNIT_MIB,
    GpuTimePolicy,
    GpuTimePolicyError,
    Mode,
    Placement,
    parse_policy,
)
from gputile.api.wording import described, matching

API_VERSION = "gputile.io/v1alpha1"
KIND = "Configuration"
Seconds = Annotated[int, Meta(ge=1, le=86400)]
LongSeconds = Annotated[int, Meta(ge=10, le=86400)]
Namespace = Annotated[
    str, matching("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "the name of a namespace")
]


class ConfigurationError(ValueError):
    """The configuration is not valid; the text names the field, the rule and the valid values."""


class Section(
    msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True
):
    """A section of the file. An unknown field is an error, since it may be a typo."""


class Trust(Section, frozen=True):
    """Which pods may share a GPU without memory isolation."""

    by: Annotated[
        Literal["namespace", "cluster"],
        described(
            "Which pods may share a GPU without memory isolation: `namespace`, pods of the same "
            "namespace, or of namespaces in the same group of `trust.groups`; `cluster`, all pods."
        ),
    ] = "namespace"
    groups: Annotated[
        dict[str, list[Namespace]],
        described(
            "Groups of namespaces whose pods may share a GPU without memory isolation, by the name "
            "of the group. A namespace may be in one group only. Ignored with `trust.by: cluster`."
        ),
    ] = msgspec.field(default_factory=dict)

    def check(self) -> None:
        """Check that each namespace is in at most one group.

        Raises:
            ConfigurationError: a namespace is in two groups.
        """
        seen: dict[str, str] = {}
        for group, namespaces in self.groups.items():
            for namespace in namespaces:
                if seen.setdefault(namespace, group) != group:
                    raise ConfigurationError(
                        f"trust.groups: namespace {namespace} is in {seen[namespace]} and in "
                        f"{group}: keep it in one"
                    )

    def group_of(self, namespace: str) -> str:
        """Return the trust group of a namespace.

        It is "*" if trust is by cluster, ``group:NAME`` for a namespace in a configured group,
        otherwise the name of the namespace.
        """
        if self.by == "cluster":
            return "*"
        for group, namespaces in self.groups.items():
            if namespace in namespaces:
                return f"group:{group}"
        return namespace


class AdmissionConfiguration(Section, frozen=True):
    """The admission webhook; ``gangs`` enables the planning of gangs."""

    trusted_users: Annotated[
        tuple[str, ...],
        described(
            "Users of the API server that may write the annotations of allocations and "
            "reservations, and change the gang labels of pods that wait. The default is gputile's "
            "ServiceAccounts in the namespace `gputile`."
        ),
    ] = (
        "system:serviceaccount:gputile:gputile-agent",
        "system:serviceaccount:gputile:gputile-controller",
        "system:serviceaccount:gputile:gputile-extender",
        "system:serviceaccount:gputile:gputile-scheduler",
    )
    gangs: Annotated[
        bool,
        described(
            "Whether gangs are planned: admission adds a scheduling gate to the pods of a gang, "
            "and the controller removes the gates when it has reserved GPUs for the whole gang."
        ),
    ] = False
    isolation: Annotated[
        Literal["none", "memory"],
        described(
            "The value of `gputile.io/isolation` for GPU pods that do not set it: `memory` keeps "
            "them off GPUs whose memory limits are not enforced; `none` does not."
        ),
    ] = "none"


class Features(Section, frozen=True):
    """The features that nodes may use. Gangs are enabled by ``admission.gangs``."""

    sharing: Annotated[
        bool,
        described(
            "Whether nodes may use the modes `cgpu`, `core_mem`, `share` and `mps`, which offer "
            "parts of GPUs. If not, such nodes offer whole GPUs."
        ),
    ] = True
    topology: Annotated[
        bool,
        described(
            "Whether nodes may use the mode `topology`. If not, such nodes offer whole GPUs."
        ),
    ] = True
    claims: Annotated[
        bool,
        described(
            'Whether nodes with the label `gputile.io/claims: "true"` offer their GPUs to '
            "ResourceClaims."
        ),
    ] = False


class GangConfiguration(Section, frozen=True):
    """The planning of gangs, which ``admission.gangs`` enables."""

    hold_seconds: Annotated[
        Seconds,
        described(
            "The time in seconds that the GPUs of a planned gang stay reserved. If the gang has "
            "not begun to start by then, it is planned again; 1 to 86400."
        ),
    ] = 120
    patience_seconds: Annotated[
        Seconds,
        described(
            "The time in seconds that other gangs may start before the first gang in the queue. "
            "After that time, GPUs that become free are reserved for the first gang; 1 to 86400."
        ),
    ] = 600
    keep_seconds: Annotated[
        Seconds,
        described(
            "The longest time in seconds that GPUs stay reserved for the first gang in the queue; "
            "1 to 86400. If it is unknown whether the gang can ever start, `gangs.patienceSeconds` "
            "applies instead. For a gang that preempts others, see `preemption.keepSeconds`."
        ),
    ] = 3600


class PreemptionConfiguration(Section, frozen=True):
    """Preemption of GPU pods by priority."""

    enabled: Annotated[
        bool,
        described(
            "Whether the controller evicts pods of lower priority for a pod or gang that does not "
            "fit, and reserves their GPUs for it. If not, only kube-scheduler preempts."
        ),
    ] = True
    keep_seconds: Annotated[
        LongSeconds,
        described(
            "The longest time in seconds that GPUs stay reserved for a pod or gang that preempts "
            "others, counted from "
            "the end of the longest grace period of the evicted pods; 10 to 86400."
        ),
    ] = 120


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


class ControllerConfiguration(Section, frozen=True):
    """The controller: taints, and nodes with a silent agent."""

    taint_nodes: Annotated[
        bool,
        described(
            "Whether the controller adds the taint `nvidia.com/gpu:NoSchedule` to GPU nodes. If "
            "not, it removes those that it has added."
        ),
    ] = True
    agent_silent_seconds: Annotated[
        Seconds,
        described(
            "The time in seconds for which a GPU node may offer no GPUs before the controller sets "
            "the condition `gputile.io/AgentSilent`; 1 to 86400."
        ),
    ] = 120


class GpuTime(Section, frozen=True):
    """How time on GPUs is shared. By default all pods have the same weight."""

    policy: Annotated[
        str | int,
        described(
            "How the containers on a GPU of a `cgpu` node share its time: the name of a policy, or "
            "its number in ACK. The label `gputile.io/gpu-time-policy` of a node overrides it. "
            "`core_mem` nodes without the label use `fixed`.",
            extra_json_schema={
                "enum": [*POLICIES, *map(str, range(len(POLICIES))), *range(len(POLICIES))]
            },
        ),
    ] = GpuTimePolicy.WEIGHTED.value
    quantum_ms: Annotated[
        int, described("The length in ms of a container's turn on a GPU; 5 to 500.", ge=5, le=500)
    ] = 30
    longest_wait_ms: Annotated[
        int,
        described(
            "The time in ms that a container waits for a GPU before it takes precedence over all "
            "others; 100 to 60000.",
            ge=100,
            le=60000,
        ),
    ] = 1000
    max_weight: Annotated[
        int,
        described(
            "The largest allowed value of a pod's annotation `gputile.io/gpu-weight`; 1 to 1000. "
            "With 1, all pods have the same weight.",
            ge=1,
            le=MOST_WEIGHT,
        ),
    ] = 1
    namespace_max_weight: Annotated[
        dict[Namespace, Annotated[int, Meta(ge=1, le=MOST_WEIGHT)]],
        described("`gpuTime.maxWeight` for some namespaces, by the name of the namespace."),
    ] = msgspec.field(default_factory=dict)

    def most_weight(self, namespace: str) -> int:
        """Return the largest allowed weight of a pod of a namespace."""
        return self.namespace_max_weight.get(namespace, self.max_weight)


class Configuration(Section, frozen=True):
    """The configuration. The descriptions of the fields are in the reference."""

    api_version: Annotated[
        Literal["gputile.io/v1alpha1"], described("The version of the format of this file.")
    ] = "gputile.io/v1alpha1"
    kind: Annotated[Literal["Configuration"], described("The kind of this file.")] = "Configuration"
    gpu_memory_unit: Annotated[
        MemorySize,
        described(
            "The memory of one unit of `aliyun.com/gpu-mem`; 64MiB or more. All nodes use it."
        ),
    ] = "1GiB"
    placement: Annotated[
        Placement,
        described(
            "Which nodes and GPUs are preferred: `binpack`, the fullest; `spread`, the emptiest; "
            "`packing`, those that leave most room for the kinds of pods that come. The node label "
            "`ack.node.gpu.placement` overrides it for the GPUs of that node."
        ),
    ] = "binpack"
    max_pods_per_gpu: Annotated[
        int,
        described(
            "The largest number of pods on a GPU with memory isolation (modes `cgpu`, `core_mem`, "
            "`mps`); 1 to 1024.",
            ge=1,
            le=1024,
        ),
    ] = 16
    trust: Annotated[Trust, described("Which pods may share a GPU without memory isolation.")] = (
        Trust()
    )
    admission: Annotated[AdmissionConfiguration, described("The admission webhook.")] = (
        AdmissionConfiguration()
    )
    features: Annotated[
        Features, described("The features that nodes may use; a node asks for them by labels.")
    ] = Features()
    gangs: Annotated[
        GangConfiguration, described("The planning of gangs, which `admission.gangs` enables.")
    ] = GangConfiguration()
    preemption: Annotated[
        PreemptionConfiguration, described("Preemption of GPU pods by priority.")
    ] = PreemptionConfiguration()
    autoscaling: Annotated[
        AutoscalingConfiguration, described("Requests for nodes from the cluster's autoscaler.")
    ] = AutoscalingConfiguration()
    controller: Annotated[ControllerConfiguration, described("The controller.")] = (
        ControllerConfiguration()
    )
    gpu_time: Annotated[GpuTime, described("How containers share the time of a GPU.")] = GpuTime()
    scheduler_name: Annotated[
        str,
        described(
            "The scheduler that admission sets in GPU pods that name none, or name "
            "`default-scheduler`. If it is empty, admission sets none."
        ),
    ] = ""

    def __post_init__(self) -> None:
        unit = self.unit_mib
        if unit < SMALLEST_UNIT_MIB:
            raise ConfigurationError(
                f"gpuMemoryUnit is {self.gpu_memory_unit}: the smallest valid unit is "
                f"{SMALLEST_UNIT_MIB}MiB"
            )
        if unit > LARGEST_UNIT_MIB:
            raise ConfigurationError(
                f"gpuMemoryUnit is {self.gpu_memory_unit}: the largest valid unit is "
                f"{LARGEST_UNIT_MIB}MiB"
            )
        try:
            parse_policy(self.gpu_time.policy)
        except GpuTimePolicyError as error:
            raise ConfigurationError(f"gpuTime.policy: {error}") from error
        self._check_node_types(unit)
        self.trust.check()

    def _check_node_types(self, unit_mib: int) -> None:
        labels: set[str] = set()
        for i, each in enumerate(self.autoscaling.node_types):
            where = f"autoscaling.nodeTypes[{i}]"
            if each.label in labels:
                raise ConfigurationError(
                    f"{where}.label: {each.label} is that of another node type: give each its own"
                )
            labels.add(each.label)
            try:
                mib = parse_mib(each.gpus.memory)
            except QuantityError as error:
                raise ConfigurationError(f"{where}.gpus.memory: {error}") from error
            if mib < unit_mib:
                raise ConfigurationError(
                    f"{where}.gpus.memory is {each.gpus.memory}: "
                    f"a GPU is smaller than one unit of {self.gpu_memory_unit}"
                )
            if mib > LARGEST_UNIT_MIB:
                raise ConfigurationError(
                    f"{where}.gpus.memory is {each.gpus.memory}: a GPU has {LARGEST_UNIT_MIB} MiB "
                    f"at most"
                )
            _check_labels(where, each)
            _check_resources(where, each)

    @property
    def unit_mib(self) -> int:
        """The memory unit in MiB.

        Raises:
            ConfigurationError: it is not a memory size.
        """
        try:
            return parse_mib(self.gpu_memory_unit)
        except QuantityError as error:
            raise ConfigurationError(f"gpuMemoryUnit: {error}") from error

    def reserves_gpus(self, *, preemption: bool) -> bool:
        """Return whether reservations are enabled: for pods that preempt, or for gangs."""
        return self.preemption.enabled if preemption else self.admission.gangs

    def trust_group(self, pod: Pod) -> str:
        """Return the trust group of a pod."""
        return self.trust.group_of(pod.metadata.namespace)


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


def load_configuration(data: Any) -> Configuration:
    """Return the configuration in the parsed file ``data``; None is an empty file.

    Raises:
        ConfigurationError: a field is unknown, or its type or value is not valid.
    """
    try:
        return convert({} if data is None else data, Configuration)
    except ConversionError as error:
        raise ConfigurationError(str(error)) from error


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
