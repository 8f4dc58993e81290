"""``gputile.io/v1alpha1`` Configuration: what a cluster's owner may set, with defaults and validation."""

from typing import Any, Literal

import msgspec

from gputile.api.core import Pod
from gputile.api.gpu_time import MOST_WEIGHT, GpuTimePolicy, GpuTimePolicyError, parse_policy
from gputile.api.quantity import QuantityError, parse_mib
from gputile.api.well_known import LARGEST_UNIT_MIB, SMALLEST_UNIT_MIB

API_VERSION = "gputile.io/v1alpha1"
KIND = "Configuration"


class ConfigurationError(ValueError):
    """The configuration is not valid; the text names the field, the rule and the valid values."""


class _Section(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Settings that every part of the configuration shares: an unknown field is an error, not a typo ignored."""


class Trust(_Section, frozen=True):
    """Who may share a card that has no memory isolation (G5).

    ``by`` "namespace": the pods of one namespace, or of the namespaces that ``groups`` puts together by a name;
    "cluster": everybody.
    """

    by: Literal["namespace", "cluster"] = "namespace"
    groups: dict[str, list[str]] = {}


class Admission(_Section, frozen=True):
    """The admission webhook.

    ``trusted_users`` are the users of the API server that may write allocations; nobody else may. ``gangs`` holds the
    pods of a gang back with a scheduling gate, until the controller has planned the whole gang (M13).
    """

    trusted_users: tuple[str, ...] = (
        "system:serviceaccount:gputile:gputile-agent",
        "system:serviceaccount:gputile:gputile-controller",
        "system:serviceaccount:gputile:gputile-extender",
        "system:serviceaccount:gputile:gputile-scheduler",
    )
    gangs: bool = False


class Features(_Section, frozen=True):
    """What GPU nodes may be switched to (M13); gangs, the third of the documents' features, are ``admission.gangs``.

    ``sharing``: parts of cards, the modes ``cgpu``, ``core_mem``, ``share`` and ``mps``; ``topology``: best-connected
    sets of cards.
    """

    sharing: bool = True
    topology: bool = True


class Gangs(_Section, frozen=True):
    """How gangs are planned; ``admission.gangs`` is whether they are (M13). Times are in seconds.

    ``hold_seconds``: how long the cards of a planned gang are kept for it before its pods are planned again.
    ``patience_seconds``: how long the gang whose turn it is lets later ones go ahead and other pods take what it
    could use, before cards that become free are kept for it.
    ``keep_seconds``: how long they are kept for it at most, before others go on; ``patience_seconds`` at most where
    nobody knows whether it could ever start.
    """

    hold_seconds: int = 120
    patience_seconds: int = 600
    keep_seconds: int = 3600


class Controller(_Section, frozen=True):
    """The controller. ``taint_nodes``: keep plain pods off GPU nodes by the taint nvidia.com/gpu:NoSchedule (G7).

    ``agent_silent_seconds``: how long a kubelet may offer nothing of what a node's agent reported before the node says
    so in a condition.
    """

    taint_nodes: bool = True
    agent_silent_seconds: int = 120


class GpuTime(_Section, frozen=True):
    """How time on the cards of ``cgpu`` nodes is shared (G4); a node's label gputile.io/gpu-time-policy goes before it.

    ``policy`` is one of ``api.gputime``, by name or by ACK's number. ``quantum_ms`` is how long a turn is,
    ``longest_wait_ms`` after how long a waiting container goes before all others. In mode ``core_mem`` the policy is
    ``fixed`` unless the label says otherwise (M5). ``max_weight`` is the most that a pod's annotation
    gputile.io/gpu-weight may say, ``namespace_max_weight`` the same for pods of certain namespaces: without leave
    nobody has more than others.
    """

    policy: str = GpuTimePolicy.WEIGHTED.value
    quantum_ms: int = 30
    longest_wait_ms: int = 1000
    max_weight: int = 1
    namespace_max_weight: dict[str, int] = {}

    def most_weight(self, namespace: str) -> int:
        """Return the most that a pod of a namespace may weigh."""
        return self.namespace_max_weight.get(namespace, self.max_weight)


class Configuration(_Section, frozen=True):
    """The whole configuration. ``gpu_memory_unit`` is written as the documents do: "1GiB", "128MiB".

    ``scheduler_name`` is the scheduler that admission gives GPU pods to which name none; "" leaves them as they are.
    """

    api_version: Literal["gputile.io/v1alpha1"] = "gputile.io/v1alpha1"
    kind: Literal["Configuration"] = "Configuration"
    gpu_memory_unit: str = "1GiB"
    placement: Literal["binpack", "spread", "packing"] = "binpack"
    max_pods_per_gpu: int = 16
    trust: Trust = Trust()
    admission: Admission = Admission()
    features: Features = Features()
    gangs: Gangs = Gangs()
    controller: Controller = Controller()
    gpu_time: GpuTime = GpuTime()
    scheduler_name: str = ""

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
        if not 1 <= self.max_pods_per_gpu <= 1024:
            raise ConfigurationError(f"maxPodsPerGpu is {self.max_pods_per_gpu}: valid are 1 to 1024")
        try:
            parse_policy(self.gpu_time.policy)
        except GpuTimePolicyError as error:
            raise ConfigurationError(f"gpuTime.policy: {error}") from error
        weights = {f"gpuTime.namespaceMaxWeight.{name}": n for name, n in self.gpu_time.namespace_max_weight.items()}
        for field, weight in {"gpuTime.maxWeight": self.gpu_time.max_weight, **weights}.items():
            if not 1 <= weight <= MOST_WEIGHT:
                raise ConfigurationError(f"{field} is {weight}: valid are 1 to {MOST_WEIGHT}")
        for field, ms, least, most in (
            ("gpuTime.quantumMs", self.gpu_time.quantum_ms, 5, 500),
            ("gpuTime.longestWaitMs", self.gpu_time.longest_wait_ms, 100, 60000),
        ):
            if not least <= ms <= most:
                raise ConfigurationError(f"{field} is {ms}: valid are {least} to {most}")
        for field, seconds in (
            ("gangs.holdSeconds", self.gangs.hold_seconds),
            ("gangs.patienceSeconds", self.gangs.patience_seconds),
            ("gangs.keepSeconds", self.gangs.keep_seconds),
            ("controller.agentSilentSeconds", self.controller.agent_silent_seconds),
        ):
            if not 1 <= seconds <= 86400:
                raise ConfigurationError(f"{field} is {seconds}: valid are 1 to 86400")
        seen: dict[str, str] = {}
        for group, namespaces in self.trust.groups.items():
            for namespace in namespaces:
                if seen.setdefault(namespace, group) != group:
                    raise ConfigurationError(
                        f"trust.groups: namespace {namespace} is in {seen[namespace]} and in {group}: keep it in one"
                    )

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

    def trust_group(self, pod: Pod) -> str:
        """Return the trust group of a pod: its namespace, the name of its namespace's group, or "*" for everybody."""
        if self.trust.by == "cluster":
            return "*"
        namespace = pod.metadata.namespace
        for group, namespaces in self.trust.groups.items():
            if namespace in namespaces:
                return f"group:{group}"
        return namespace


def load_configuration(data: Any) -> Configuration:
    """Return the configuration in ``data``, what a YAML parser made of the file; None is an empty file.

    Raises:
        ConfigurationError: an unknown field, a wrong type or a value that is not valid.
    """
    try:
        return msgspec.convert({} if data is None else data, Configuration)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigurationError):
            raise error.__cause__ from None
        raise ConfigurationError(str(error)) from error
