"""Defines objects that only some services read, such as workloads, Leases, PodGroups and Events."""

from typing import Final

import msgspec

from gputile.api.affinity import LabelSelector
from gputile.api.conversion import WireObject
from gputile.api.core import ObjectMeta, ObjectReference, Pod, PodSpec, PodStatus, StoredObject


class WorkloadMeta(ObjectMeta):
    """metav1.ObjectMeta of a workload. ``generation`` counts the changes of the spec."""

    generation: int = 0


class WorkloadCondition(WireObject):
    """A condition of a workload or pod."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class DeploymentSpec(WireObject):
    """apps/v1 DeploymentSpec."""

    replicas: int = 1


class DeploymentStatus(WireObject):
    """apps/v1 DeploymentStatus."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    conditions: list[WorkloadCondition] = []


class Deployment(WireObject):
    """apps/v1 Deployment."""

    metadata: WorkloadMeta = msgspec.field(default_factory=WorkloadMeta)
    spec: DeploymentSpec = msgspec.field(default_factory=DeploymentSpec)
    status: DeploymentStatus = msgspec.field(default_factory=DeploymentStatus)


class DaemonSetStatus(WireObject):
    """apps/v1 DaemonSetStatus."""

    observed_generation: int = 0
    desired_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    conditions: list[WorkloadCondition] = []


class DaemonSet(WireObject):
    """apps/v1 DaemonSet."""

    metadata: WorkloadMeta = msgspec.field(default_factory=WorkloadMeta)
    status: DaemonSetStatus = msgspec.field(default_factory=DaemonSetStatus)


class WebhookService(WireObject):
    """admissionregistration.k8s.io/v1 ServiceReference."""

    namespace: str = ""


class WebhookClient(WireObject):
    """admissionregistration.k8s.io/v1 WebhookClientConfig. A URL may replace ``service``."""

    service: WebhookService | None = None


class WebhookEntry(WireObject):
    """admissionregistration.k8s.io/v1 MutatingWebhook."""

    name: str = ""
    client_config: WebhookClient = msgspec.field(default_factory=WebhookClient)


class WebhookConfiguration(StoredObject):
    """admissionregistration.k8s.io/v1 MutatingWebhookConfiguration."""

    webhooks: list[WebhookEntry] = []


class Waiting(WireObject):
    """core/v1 ContainerStateWaiting."""

    reason: str = ""
    message: str = ""


class Terminated(WireObject):
    """core/v1 ContainerStateTerminated."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(WireObject):
    """core/v1 ContainerState. A running container has neither field."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class RunningContainerStatus(WireObject):
    """core/v1 ContainerStatus: whether a container runs, or why it does not run."""

    name: str = ""
    ready: bool = False
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)


class NamedPort(WireObject):
    """core/v1 ContainerPort."""

    name: str = ""
    container_port: int = 0


class ServingContainer(WireObject):
    """core/v1 Container, with only its ports."""

    ports: list[NamedPort] = []


class RunningPodSpec(WireObject):
    """core/v1 PodSpec, with only the node and the ports of containers."""

    node_name: str = ""
    containers: list[ServingContainer] = []


class RunningPodStatus(WireObject):
    """core/v1 PodStatus."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[WorkloadCondition] = []
    init_container_statuses: list[RunningContainerStatus] = []
    container_statuses: list[RunningContainerStatus] = []


class RunningPod(StoredObject):
    """core/v1 Pod with the status that its kubelet reports."""

    spec: RunningPodSpec = msgspec.field(default_factory=RunningPodSpec)
    status: RunningPodStatus = msgspec.field(default_factory=RunningPodStatus)

    @property
    def ready(self) -> bool:
        """Whether the pod is ready and not being deleted."""
        up = any(
            condition.type == "Ready" and condition.status == "True"
            for condition in self.status.conditions
        )
        return up and self.metadata.deletion_timestamp is None


class ContainerEnd(WireObject):
    """core/v1 ContainerStateTerminated without its fields. Only its presence is read."""


class StartedContainerState(WireObject):
    """core/v1 ContainerState. ``terminated`` is set between the end and a restart."""

    terminated: ContainerEnd | None = None


class StartedContainer(WireObject):
    """core/v1 ContainerStatus, with only whether the container has ended.

    Other fields, which the kubelet updates often, would make two versions of the pod differ.
    """

    name: str = ""
    state: StartedContainerState = msgspec.field(default_factory=StartedContainerState)


class PodStatusOnNode(PodStatus):
    """A pod's status with the states of the containers, which only the node's agent needs."""

    container_statuses: tuple[StartedContainer, ...] = ()
    init_container_statuses: tuple[StartedContainer, ...] = ()


class HostPathVolume(WireObject):
    """core/v1 HostPathVolumeSource."""

    path: str = ""


class VolumeOnNode(WireObject):
    """core/v1 Volume, to find out which of the node's directories a pod mounts."""

    host_path: HostPathVolume | None = None


class PodSpecOnNode(PodSpec):
    """A pod's spec with the volumes, which only the node's agent needs."""

    volumes: tuple[VolumeOnNode, ...] = ()


class PodOnNode(Pod):
    """A pod as its node's agent reads it, with the volumes and the states of the containers.

    The control plane stores tens of thousands of pods, and so reads the smaller ``Pod``.
    """

    spec: PodSpecOnNode = msgspec.field(default_factory=PodSpecOnNode)
    status: PodStatusOnNode = msgspec.field(default_factory=PodStatusOnNode)


def ended_containers(pod: Pod) -> frozenset[str]:
    """Return the names of the pod's ended containers. Only a ``PodOnNode`` records these."""
    if not isinstance(pod, PodOnNode):
        return frozenset()
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return frozenset(each.name for each in statuses if each.state.terminated is not None)


class Event(StoredObject):
    """core/v1 Event. Clients of events.k8s.io set ``event_time`` but not ``last_timestamp``."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def when(self) -> str:
        """The Kubernetes timestamp of the event's last occurrence, or "" if it has none."""
        return self.last_timestamp or self.event_time or ""


class ConfigMap(StoredObject):
    """core/v1 ConfigMap."""

    data: dict[str, str] = {}


class ServiceAccount(StoredObject):
    """core/v1 ServiceAccount."""


class HelmRevision(StoredObject):
    """core/v1 Secret in which Helm stores a release. Labels name release, revision and status."""


class ListedPriorityClass(StoredObject):
    """scheduling/v1 PriorityClass."""

    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""


class Namespace(StoredObject):
    """core/v1 Namespace."""


class ServedKind(WireObject):
    """metav1.APIResource. The name of a subresource is ``RESOURCE/SUBRESOURCE``."""

    name: str = ""
    kind: str = ""
    namespaced: bool = False


class ServedKinds(WireObject):
    """metav1.APIResourceList: all resources of one version of an API group."""

    resources: list[ServedKind] = []


POD_GROUP_API: Final = "scheduling.x-k8s.io"
# The API server answers 404 if the CRDs of the group are not installed.
POD_GROUP_API_PATH: Final = f"/apis/{POD_GROUP_API}/v1alpha1"
POD_GROUPS_PATH: Final = f"{POD_GROUP_API_PATH}/podgroups"


class LeaseSpec(WireObject):
    """coordination.k8s.io/v1 LeaseSpec. The holder of a released Lease is None or ""."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None


class Lease(WireObject):
    """coordination.k8s.io/v1 Lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class PodGroupSpec(msgspec.Struct, rename="camel", gc=False):
    """The spec of a PodGroup. ``min_member`` is the number of pods that must start together."""

    min_member: int = 0


class PodGroup(msgspec.Struct, rename="camel", gc=False):
    """scheduling.x-k8s.io/v1alpha1 PodGroup."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


class _BudgetSpec(msgspec.Struct, rename="camel"):
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str = ""


class _BudgetStatus(msgspec.Struct, rename="camel"):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    disrupted_pods: dict[str, str] | None = None  # the time of each pod's eviction, by pod name


class PodDisruptionBudget(msgspec.Struct, rename="camel", kw_only=True):
    """policy/v1 PodDisruptionBudget."""

    metadata: ObjectMeta
    spec: _BudgetSpec = msgspec.field(default_factory=_BudgetSpec)
    status: _BudgetStatus = msgspec.field(default_factory=_BudgetStatus)

    @property
    def allows_unready(self) -> bool:
        """Whether pods that are not ready may be evicted even if no disruption is allowed.

        KEP-3017 and the API server's ``EvictionREST`` define the rule. The default policy is
        ``IfHealthyBudget``.
        """
        always = self.spec.unhealthy_pod_eviction_policy == "AlwaysAllow"
        return always or self.status.current_healthy >= self.status.desired_healthy > 0
