"""Defines what the configuration may set, with defaults and validation (``gputile.io/v1alpha1``)."""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gputile.api.conversion import ConversionError, convert
from gputile.api.core import Pod
from gputile.api.gpu_time import MOST_WEIGHT, POLICIES, GpuTimePolicy, GpuTimePolicyError, parse_policy
from gputile.api.quantity import Amount, MemorySize, QuantityError, parse_amount, parse_mib
from gputile.api.well_known import GPU_RESOURCES, LARGEST_UNIT_MIB, MODE_LABEL, SMALLEST_UNIT_MIB, Mode, Placement
from gputile.api.wording import described, matching

API_VERSION = "gputile.io/v1alpha1"
KIND = "Configuration"
Namespace = Annotated[str, matching("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "the name of a namespace")]


class ConfigurationError(ValueError):
    """The configuration is not valid; the text names the field, the rule and the valid values."""


class Section(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A part of a file that people write: an unknown field is an error, since it may be a typing mistake."""


class Trust(Section, frozen=True):
    """Who may share a GPU that has no memory isolation."""

    by: Annotated[
        Literal["namespace", "cluster"],
        described(
            "Who may share a GPU that isolates nothing: `namespace`, the pods of one namespace or of one group of "
            "`trust.groups`; `cluster`, everybody."
        ),
    ] = "namespace"
    groups: Annotated[
        dict[str, list[Namespace]],
        described("Namespaces that trust each other, by a name of the group. A namespace is in one group at most."),
    ] = msgspec.field(default_factory=dict)

    def check(self) -> None:
        """Refuse a namespace of two groups.

        Raises:
            ConfigurationError: there is one.
        """
        seen: dict[str, str] = {}
        for group, namespaces in self.groups.items():
            for namespace in namespaces:
                if seen.setdefault(namespace, group) != group:
                    raise ConfigurationError(
                        f"trust.groups: namespace {namespace} is in {seen[namespace]} and in {group}: keep it in one"
                    )

    def group_of(self, namespace: str) -> str:
        """Return the trust group of a namespace: itself, the name of its group, or "*" for everybody."""
        if self.by == "cluster":
            return "*"
        for group, namespaces in self.groups.items():
            if namespace in namespaces:
                return f"group:{group}"
        return namespace


class AdmissionConfiguration(Section, frozen=True):
    """The admission webhook; ``gangs`` is whether gangs are planned at all."""

    trusted_users: Annotated[tuple[str, ...], described("The users of the API server that may write allocations.")] = (
        "system:serviceaccount:gputile:gputile-agent",
        "system:serviceaccount:gputile:gputile-controller",
        "system:serviceaccount:gputile:gputile-extender",
        "system:serviceaccount:gputile:gputile-scheduler",
    )
    gangs: Annotated[
        bool,
        described(
            "Whether pods of a gang wait behind a scheduling gate until the controller has planned the whole gang."
        ),
    ] = False
    isolation: Annotated[
        Literal["none", "memory"],
        described(
            "What admission writes into GPU pods without `gputile.io/isolation`: `memory` keeps them off GPUs on which "
            "memory is not limited."
        ),
    ] = "none"


class Features(Section, frozen=True):
    """What GPU nodes may be switched to; gangs, the third feature, are ``admission.gangs``."""

    sharing: Annotated[
        bool,
        described("Whether nodes may be switched to parts of GPUs: the modes `cgpu`, `core_mem`, `share` and `mps`."),
    ] = True
    topology: Annotated[bool, described("Whether nodes may be switched to the mode `topology`.")] = True
    claims: Annotated[
        bool,
        described("Whether nodes may give their GPUs by ResourceClaims (the label `gputile.io/claims`)."),
    ] = False


class GangConfiguration(Section, frozen=True):
    """How gangs are planned; ``admission.gangs`` is whether they are."""

    hold_seconds: Annotated[
        int,
        described(
            "How long the GPUs of a planned gang are kept for it before its pods are planned again; 1 to 86400.",
            ge=1,
            le=86400,
        ),
    ] = 120
    patience_seconds: Annotated[
        int,
        described(
            "How long the first gang in the queue lets others go ahead before GPUs that become free are kept for it; "
            "1 to 86400.",
            ge=1,
            le=86400,
        ),
    ] = 600
    keep_seconds: Annotated[
        int,
        described(
            "How long GPUs are kept for that gang at most; `gangs.patienceSeconds` if it is not known whether the "
            "gang could ever start; 1 to 86400. GPUs that pods leave for one pod of higher priority are kept by "
            "`preemption.keepSeconds`.",
            ge=1,
            le=86400,
        ),
    ] = 3600


class PreemptionConfiguration(Section, frozen=True):
    """Preemption of GPU pods where kube-scheduler finds no victims."""

    enabled: Annotated[
        bool,
        described(
            "Whether pods of lower priority are evicted for a pod or a gang that no GPUs have room for, and the GPUs "
            "are kept for it."
        ),
    ] = True
    keep_seconds: Annotated[
        int,
        described(
            "How long the GPUs are kept for it at most, beyond the longest grace period of the pods that leave; 10 to "
            "86400. GPUs that become free for a gang are kept by `gangs.keepSeconds`.",
            ge=10,
            le=86400,
        ),
    ] = 120


# Kubernetes, "Labels and Selectors"
_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}"
_LABEL_VALUE = rf"({_LABEL_NAME})?"
_MOST_OFFERED = 2**53  # what every reader of JSON keeps exactly


class NodeTypeGpus(Section, frozen=True, kw_only=True):
    """The GPUs of one node of a type."""

    count: Annotated[int, described("How many GPUs such a node has; 1 to 64.", ge=1, le=64)] = 1
    memory: Annotated[
        MemorySize, described("Memory of a GPU, as `nvidia-smi --query-gpu=memory.total` prints it: `23028MiB`.")
    ]


class NodeTaint(Section, frozen=True, kw_only=True):
    """A taint that the nodes of a type have, beside ``nvidia.com/gpu:NoSchedule``."""

    key: Annotated[str, described("The key of the taint.", min_length=1)]
    value: Annotated[str, described("Its value.")] = ""
    effect: Annotated[Literal["NoSchedule", "NoExecute"], described("Its effect.")] = "NoSchedule"


class NodeTypeConfiguration(Section, frozen=True, kw_only=True):
    """GPU nodes that the cluster's autoscaler can add."""

    label: Annotated[
        str,
        matching(
            f"{_LABEL_KEY}={_LABEL_NAME}",
            "KEY=VALUE of a node label",
            "The label, as `KEY=VALUE`, that the nodes of this type have and no others: the one by which the "
            "provider or the autoscaler names their pool.",
        ),
    ]
    gpus: Annotated[NodeTypeGpus, described("The GPUs of one node.")]
    mode: Annotated[Mode, described("The mode that the nodes join with.")] = Mode.EXCLUSIVE
    labels: Annotated[
        dict[
            Annotated[str, Meta(extra_json_schema={"pattern": f"^{_LABEL_KEY}$"})],
            Annotated[str, Meta(extra_json_schema={"pattern": f"^{_LABEL_VALUE}$"})],
        ],
        described("Further labels of the nodes that pods may select by."),
    ] = msgspec.field(default_factory=dict)
    taints: Annotated[tuple[NodeTaint, ...], described("Taints of the nodes, beside `nvidia.com/gpu:NoSchedule`.")] = ()
    resources: Annotated[
        dict[str, Amount | Annotated[int, Meta(ge=0, le=_MOST_OFFERED)]],
        described(
            "What else one node offers to pods, by resource: `vpc.amazonaws.com/efa: 4`, `hugepages-2Mi: 4Gi`. CPU, "
            "memory and ephemeral storage are taken to be enough unless they are named."
        ),
    ] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """The key of the label."""
        return self.label.partition("=")[0]

    @property
    def value(self) -> str:
        """The value of the label."""
        return self.label.partition("=")[2]


class AutoscalingConfiguration(Section, frozen=True):
    """What the cluster's autoscaler is told of demand that it cannot see."""

    enabled: Annotated[
        bool,
        described(
            "Whether the controller asks the cluster's autoscaler for nodes by placeholder pods, and pods are kept "
            "off node types that could never take them."
        ),
    ] = False
    most_nodes: Annotated[int, described("How many nodes are asked for at once, at most; 1 to 100.", ge=1, le=100)] = 10
    wait_seconds: Annotated[
        int,
        described(
            "How long a node may take until it joins, and then until its agent has reported GPUs; 10 to 86400.",
            ge=10,
            le=86400,
        ),
    ] = 900
    node_types: Annotated[
        tuple[NodeTypeConfiguration, ...],
        described("The GPU nodes that the autoscaler can add, those that are tried first in front."),
    ] = ()


class ControllerConfiguration(Section, frozen=True):
    """The controller: taints, and nodes whose agent is silent."""

    taint_nodes: Annotated[
        bool, described("Whether GPU nodes get the taint `nvidia.com/gpu:NoSchedule`, which keeps other pods off.")
    ] = True
    agent_silent_seconds: Annotated[
        int,
        described(
            "For how long a kubelet may offer nothing of what the node's agent reported before the node gets the "
            "condition `gputile.io/AgentSilent`; 1 to 86400.",
            ge=1,
            le=86400,
        ),
    ] = 120


class GpuTime(Section, frozen=True):
    """How time on GPUs is shared. Without leave no pod weighs more than others."""

    policy: Annotated[
        str | int,
        described(
            "How time on the GPUs of `cgpu` nodes is shared, by the name of a policy or its number in ACK. The label "
            "`gputile.io/gpu-time-policy` of a node goes before it; `core_mem` nodes use `fixed` unless the label "
            "says otherwise.",
            extra_json_schema={"enum": [*POLICIES, *map(str, range(len(POLICIES))), *range(len(POLICIES))]},
        ),
    ] = GpuTimePolicy.WEIGHTED.value
    quantum_ms: Annotated[int, described("How long a turn is, ms; 5 to 500.", ge=5, le=500)] = 30
    longest_wait_ms: Annotated[
        int,
        described("After how long a container that waits goes before all others, ms; 100 to 60000.", ge=100, le=60000),
    ] = 1000
    max_weight: Annotated[
        int,
        described(
            "The most that the annotation `gputile.io/gpu-weight` of a pod may say; 1 to 1000.", ge=1, le=MOST_WEIGHT
        ),
    ] = 1
    namespace_max_weight: Annotated[
        dict[Namespace, Annotated[int, Meta(ge=1, le=MOST_WEIGHT)]],
        described("The same for the pods of some namespaces, by namespace."),
    ] = msgspec.field(default_factory=dict)

    def most_weight(self, namespace: str) -> int:
        """Return the most that a pod of a namespace may weigh."""
        return self.namespace_max_weight.get(namespace, self.max_weight)


class Configuration(Section, frozen=True):
    """The whole configuration. The descriptions of the fields are the reference that people read."""

    api_version: Annotated[Literal["gputile.io/v1alpha1"], described("The version of this file.")] = (
        "gputile.io/v1alpha1"
    )
    kind: Annotated[Literal["Configuration"], described("What this file is.")] = "Configuration"
    gpu_memory_unit: Annotated[MemorySize, described("One unit of `aliyun.com/gpu-mem`: 64MiB or more.")] = "1GiB"
    placement: Annotated[
        Placement,
        described(
            "Which nodes and GPUs are filled first: `binpack`, the fullest; `spread`, the emptiest; `packing`, those "
            "that cost later pods least. The label `ack.node.gpu.placement` chooses among the GPUs of its node."
        ),
    ] = "binpack"
    max_pods_per_gpu: Annotated[
        int,
        described(
            "The most pods on a GPU where memory is isolated (`cgpu`, `core_mem`, `mps`); 1 to 1024.", ge=1, le=1024
        ),
    ] = 16
    trust: Annotated[Trust, described("Who may share a GPU that isolates nothing.")] = Trust()
    admission: Annotated[AdmissionConfiguration, described("The admission webhook.")] = AdmissionConfiguration()
    features: Annotated[Features, described("What GPU nodes may be switched to.")] = Features()
    gangs: Annotated[GangConfiguration, described("How gangs are planned.")] = GangConfiguration()
    preemption: Annotated[PreemptionConfiguration, described("Preemption of GPU pods by priority.")] = (
        PreemptionConfiguration()
    )
    autoscaling: Annotated[AutoscalingConfiguration, described("What the cluster's autoscaler is told.")] = (
        AutoscalingConfiguration()
    )
    controller: Annotated[ControllerConfiguration, described("The controller.")] = ControllerConfiguration()
    gpu_time: Annotated[GpuTime, described("How time on GPUs is shared.")] = GpuTime()
    scheduler_name: Annotated[
        str,
        described("The scheduler that admission writes into GPU pods that name none; empty: they stay as they are."),
    ] = ""

    def __post_init__(self) -> None:
        unit = self.unit_mib
        if unit < SMALLEST_UNIT_MIB:
            raise ConfigurationError(
                f"gpuMemoryUnit is {self.gpu_memory_unit}: the smallest valid unit is {SMALLEST_UNIT_MIB}MiB"
            )
        if unit > LARGEST_UNIT_MIB:
            raise ConfigurationError(
                f"gpuMemoryUnit is {self.gpu_memory_unit}: the largest valid unit is {LARGEST_UNIT_MIB}MiB"
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
                raise ConfigurationError(f"{where}.label: {each.label} is that of another node type: give each its own")
            labels.add(each.label)
            try:
                mib = parse_mib(each.gpus.memory)
            except QuantityError as error:
                raise ConfigurationError(f"{where}.gpus.memory: {error}") from error
            if mib < unit_mib:
                raise ConfigurationError(
                    f"{where}.gpus.memory is {each.gpus.memory}: a GPU holds not one unit of {self.gpu_memory_unit}"
                )
            if mib > LARGEST_UNIT_MIB:
                raise ConfigurationError(
                    f"{where}.gpus.memory is {each.gpus.memory}: a GPU has {LARGEST_UNIT_MIB} MiB at most"
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
        """Return whether GPUs are kept for pods that are to be bound: for those that preempt, or for gangs."""
        return self.preemption.enabled if preemption else self.admission.gangs

    def trust_group(self, pod: Pod) -> str:
        """Return the trust group of a pod: see ``trust_groups``."""
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
    """Return the configuration in ``data``, what a YAML parser made of the file; None is an empty file.

    Raises:
        ConfigurationError: an unknown field, a wrong type or a value that is not valid.
    """
    try:
        return convert({} if data is None else data, Configuration)
    except ConversionError as error:
        raise ConfigurationError(str(error)) from error


def _check_labels(where: str, described: NodeTypeConfiguration) -> None:
    """Check the further labels of a node type: other fields decide some."""
    decided = {described.key: ("label", described.value), MODE_LABEL: ("mode", described.mode.value)}
    for key, value in described.labels.items():
        if not re.fullmatch(_LABEL_KEY, key):
            raise ConfigurationError(f"{where}.labels: {key[:63]!r} is no key of a label")
        if not re.fullmatch(_LABEL_VALUE, value):
            raise ConfigurationError(f"{where}.labels.{key} is {value[:64]!r}, which is no value of a label")
        field, expected = decided.get(key, ("", value))
        if value != expected:
            raise ConfigurationError(f"{where}.labels.{key} is {value}, and {field} says {expected}")
