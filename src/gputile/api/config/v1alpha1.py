"""Defines the configuration file with defaults and validation (``gputile.io/v1alpha1``)."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gputile.api.config.autoscaling import AutoscalingConfiguration
from gputile.api.config.section import (
    ConfigurationError,
    LongSeconds,
    Namespace,
    Seconds,
    Section,
    memory_mib,
)
from gputile.api.conversion import ConversionError, convert
from gputile.api.core import Pod
from gputile.api.quantity import MOST_WEIGHT, MemorySize
from gputile.api.well_known import (
    LARGEST_UNIT_MIB,
    POLICIES,
    SMALLEST_UNIT_MIB,
    GpuTimePolicy,
    GpuTimePolicyError,
    Placement,
    parse_policy,
)
from gputile.api.wording import described

API_VERSION = "gputile.io/v1alpha1"
KIND = "Configuration"


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
    """How gangs are planned, if ``admission.gangs`` is true."""

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
        self.autoscaling.check(unit, self.gpu_memory_unit)
        self.trust.check()

    @property
    def unit_mib(self) -> int:
        """The memory unit in MiB.

        Raises:
            ConfigurationError: it is not a memory size.
        """
        return memory_mib("gpuMemoryUnit", self.gpu_memory_unit)

    def reserves_gpus(self, *, preemption: bool) -> bool:
        """Return whether reservations are enabled: for pods that preempt, or for gangs."""
        return self.preemption.enabled if preemption else self.admission.gangs

    def trust_group(self, pod: Pod) -> str:
        """Return the trust group of a pod."""
        return self.trust.group_of(pod.metadata.namespace)


def load_configuration(data: Any) -> Configuration:
    """Return the configuration in the parsed file ``data``; None is an empty file.

    Raises:
        ConfigurationError: a field is unknown, or its type or value is not valid.
    """
    try:
        return convert({} if data is None else data, Configuration)
    except ConversionError as error:
        raise ConfigurationError(str(error)) from error
