"""Defines the configuration file ``gputile.io/v1alpha1``: its fields, defaults and validation."""

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
            "Which pods may share a GPU without memory isolation. `namespace` allows pods of the "
            "same namespace, or of namespaces in the same group of `trust.groups`. `cluster` "
            "allows all pods."
        ),
    ] = "namespace"
    groups: Annotated[
        dict[str, list[Namespace]],
        described(
            "Groups of namespaces whose pods may share a GPU without memory isolation, by the name "
            "of the group. A namespace may be in only one group. `trust.by: cluster` ignores the "
            "groups."
        ),
    ] = msgspec.field(default_factory=dict)

    def check(self) -> None:
        """Check that each namespace is in at most one group.

        Raises ConfigurationError if a namespace is in two groups.
        """
        seen: dict[str, str] = {}
        for group, namespaces in self.groups.items():
            for namespace in namespaces:
                if seen.setdefault(namespace, group) != group:
                    raise ConfigurationError(
                        f"trust.groups: namespace {namespace} is in {seen[namespace]} and in "
                        f"{group}: remove it from one of them"
                    )

    def group_of(self, namespace: str) -> str:
        """Return the name of the trust group that a namespace belongs to.

        With ``by`` "cluster", the name is "*". Otherwise it is ``group:NAME`` for a namespace in
        ``groups``, and the name of the namespace itself for other namespaces.
        """
        if self.by == "cluster":
            return "*"
        for group, namespaces in self.groups.items():
            if namespace in namespaces:
                return f"group:{group}"
        return namespace


class AdmissionConfiguration(Section, frozen=True):
    """The settings of the admission webhook. ``gangs`` also makes the controller plan gangs."""

    trusted_users: Annotated[
        tuple[str, ...],
        described(
            "Users of the API server that may write the annotations of allocations and "
            "reservations, and change the gang labels of pending pods. The default is gputile's "
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
            "Whether gangs are planned. If so, admission adds a scheduling gate to the pods of a "
            "gang. The controller removes the gates when it has reserved GPUs for the whole gang."
        ),
    ] = False
    isolation: Annotated[
        Literal["none", "memory"],
        described(
            "The value of `gputile.io/isolation` for GPU pods that do not set it. `memory` "
            "excludes these pods from GPUs whose memory limits are not enforced. `none` allows "
            "every GPU."
        ),
    ] = "none"


class Features(Section, frozen=True):
    """The features that nodes may use. The field ``admission.gangs`` enables gangs."""

    sharing: Annotated[
        bool,
        described(
            "Whether nodes may use the modes `cgpu`, `core_mem`, `share` and `mps`, which offer "
            "parts of GPUs. If not, nodes with these modes use the mode `default`."
        ),
    ] = True
    topology: Annotated[
        bool,
        described(
            "Whether nodes may use the mode `topology`. If not, nodes with this mode use the "
            "mode `default`."
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
    """How the controller plans gangs if ``admission.gangs`` is true."""

    hold_seconds: Annotated[
        Seconds,
        described(
            "The time in seconds that the GPUs of a planned gang stay reserved, 1 to 86400. A gang "
            "without a bound pod after that time is planned again."
        ),
    ] = 120
    patience_seconds: Annotated[
        Seconds,
        described(
            "The time in seconds that other gangs may start before the first gang in the queue, 1 "
            "to 86400. After that time, GPUs that become free are reserved for the first gang."
        ),
    ] = 600
    keep_seconds: Annotated[
        Seconds,
        described(
            "The longest time in seconds that GPUs stay reserved for the first gang in the queue, "
            "1 to 86400. If it is unknown whether the gang can ever start, `gangs.patienceSeconds` "
            "applies instead. For a gang that preempts others, see `preemption.keepSeconds`."
        ),
    ] = 3600


class PreemptionConfiguration(Section, frozen=True):
    """How GPU pods and gangs preempt pods of lower priority."""

    enabled: Annotated[
        bool,
        described(
            "Whether the controller preempts for a pod or gang that does not fit. It evicts pods "
            "of lower priority and reserves their GPUs. If not, only kube-scheduler preempts."
        ),
    ] = True
    keep_seconds: Annotated[
        LongSeconds,
        described(
            "The longest time in seconds that GPUs stay reserved for a pod or gang that preempts "
            "others, 10 to 86400. The time begins when the longest grace period of the evicted "
            "pods ends."
        ),
    ] = 120


class ControllerConfiguration(Section, frozen=True):
    """How the controller taints GPU nodes, and when it reports that an agent is silent."""

    taint_nodes: Annotated[
        bool,
        described(
            "Whether the controller adds the taint `nvidia.com/gpu:NoSchedule` to GPU nodes. If "
            "not, it removes the taints that it has added before."
        ),
    ] = True
    agent_silent_seconds: Annotated[
        Seconds,
        described(
            "The time in seconds for which a GPU node may offer no GPUs, 1 to 86400. After that "
            "time the controller sets the condition `gputile.io/AgentSilent`."
        ),
    ] = 120


class GpuTime(Section, frozen=True):
    """How the containers on a GPU share its time. By default all pods have the same weight."""

    policy: Annotated[
        str | int,
        described(
            "The policy by which the containers on a GPU of a `cgpu` node share its time, as a "
            "name or as the policy's number in ACK. The node label `gputile.io/gpu-time-policy` "
            "overrides this field. `core_mem` nodes without the label use `fixed`.",
            extra_json_schema={
                "enum": [*POLICIES, *map(str, range(len(POLICIES))), *range(len(POLICIES))]
            },
        ),
    ] = GpuTimePolicy.WEIGHTED.value
    quantum_ms: Annotated[
        int, described("The length in ms of a container's turn on a GPU, 5 to 500.", ge=5, le=500)
    ] = 30
    longest_wait_ms: Annotated[
        int,
        described(
            "The time in ms that a container waits for a GPU before it takes precedence over all "
            "others, 100 to 60000.",
            ge=100,
            le=60000,
        ),
    ] = 1000
    max_weight: Annotated[
        int,
        described(
            "The largest allowed value of a pod's annotation `gputile.io/gpu-weight`, 1 to 1000. "
            "With 1, all pods have the same weight.",
            ge=1,
            le=MOST_WEIGHT,
        ),
    ] = 1
    namespace_max_weight: Annotated[
        dict[Namespace, Annotated[int, Meta(ge=1, le=MOST_WEIGHT)]],
        described("Values that replace `gpuTime.maxWeight` in single namespaces, by namespace."),
    ] = msgspec.field(default_factory=dict)

    def most_weight(self, namespace: str) -> int:
        """Return the largest weight that the pods of a namespace may have."""
        return self.namespace_max_weight.get(namespace, self.max_weight)


class Configuration(Section, frozen=True):
    """The whole configuration file. ``docs/reference/configuration.md`` lists all fields."""

    api_version: Annotated[
        Literal["gputile.io/v1alpha1"], described("The version of the format of this file.")
    ] = "gputile.io/v1alpha1"
    kind: Annotated[Literal["Configuration"], described("The kind of this file.")] = "Configuration"
    gpu_memory_unit: Annotated[
        MemorySize,
        described("The memory of one unit of `aliyun.com/gpu-mem` on all nodes, 64MiB or more."),
    ] = "1GiB"
    placement: Annotated[
        Placement,
        described(
            "Which nodes and GPUs are preferred. `binpack` prefers the fullest, and `spread` the "
            "emptiest. `packing` leaves most room for the kinds of pods that usually arrive. The "
            "node label `ack.node.gpu.placement` overrides this field for the GPUs of that node."
        ),
    ] = "binpack"
    max_pods_per_gpu: Annotated[
        int,
        described(
            "The largest number of pods on a GPU with memory isolation (modes `cgpu`, `core_mem` "
            "and `mps`), 1 to 1024.",
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
        Features, described("The features that nodes may use. A node selects them by its labels.")
    ] = Features()
    gangs: Annotated[
        GangConfiguration, described("How gangs are planned if `admission.gangs` is true.")
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
            "The scheduler that admission sets in GPU pods with no scheduler name, or with the "
            "name `default-scheduler`. If this field is empty, admission sets no scheduler."
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

        Raises ConfigurationError if ``gpu_memory_unit`` is not a memory size.
        """
        return memory_mib("gpuMemoryUnit", self.gpu_memory_unit)

    def reserves_gpus(self, *, preemption: bool) -> bool:
        """Return whether preemption (or, if ``preemption`` is False, gangs) may reserve GPUs."""
        return self.preemption.enabled if preemption else self.admission.gangs

    def trust_group(self, pod: Pod) -> str:
        """Return the trust group of the pod's namespace."""
        return self.trust.group_of(pod.metadata.namespace)


def load_configuration(data: Any) -> Configuration:
    """Return the configuration in the parsed file ``data``, which is None for an empty file.

    Raises ConfigurationError if a field is unknown, or its type or value is not valid.
    """
    try:
        return convert({} if data is None else data, Configuration)
    except ConversionError as error:
        raise ConfigurationError(str(error)) from error
