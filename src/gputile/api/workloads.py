"""Defines slim Deployments, DaemonSets and others that tell whether gputile is ready."""

import msgspec

from gputile.api.conversion import WireObject
from gputile.api.core import ObjectMeta, ObjectReference, StoredObject


class WorkloadMeta(ObjectMeta):
    """metav1.ObjectMeta of a workload: ``generation`` counts the changes of its spec."""

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
    """admissionregistration.k8s.io/v1 WebhookClientConfig: its Service, None where an address is given."""

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
    """core/v1 ContainerState: one of the two, or neither for a container that runs."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class RunningContainerStatus(WireObject):
    """core/v1 ContainerStatus: whether a container runs, and why not."""

    name: str = ""
    ready: bool = False
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)


class NamedPort(WireObject):
    """core/v1 ContainerPort."""

    name: str = ""
    container_port: int = 0


class ServingContainer(WireObject):
    """core/v1 Container: where it listens."""

    ports: list[NamedPort] = []


class RunningPodSpec(WireObject):
    """core/v1 PodSpec: where the pod is, and where it listens."""

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
    """core/v1 Pod, as its kubelet reports it."""

    spec: RunningPodSpec = msgspec.field(default_factory=RunningPodSpec)
    status: RunningPodStatus = msgspec.field(default_factory=RunningPodStatus)

    @property
    def ready(self) -> bool:
        """Whether the pod is ready and stays: it is not being deleted."""
        up = any(condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions)
        return up and self.metadata.deletion_timestamp is None


class Event(StoredObject):
    """core/v1 Event. ``last_timestamp`` is RFC 3339, None where the series API wrote ``event_time`` only."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def when(self) -> str:
        """The time, which sorts as text."""
        return self.last_timestamp or self.event_time or ""


class ConfigMap(StoredObject):
    """core/v1 ConfigMap."""

    data: dict[str, str] = {}


class ServiceAccount(StoredObject):
    """core/v1 ServiceAccount."""


class HelmRevision(StoredObject):
    """core/v1 Secret in which Helm keeps a revision of a release; its labels name the release, revision and state."""


class ListedPriorityClass(StoredObject):
    """scheduling/v1 PriorityClass."""

    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""


class Namespace(StoredObject):
    """core/v1 Namespace: what it is called, its labels, and whether it is being deleted."""


class ServedKind(WireObject):
    """metav1.APIResource: a kind that an API server serves, or with a slash in its ``name`` a part of one."""

    name: str = ""
    kind: str = ""
    namespaced: bool = False


class ServedKinds(WireObject):
    """metav1.APIResourceList: what an API server serves of one version of a group."""

    resources: list[ServedKind] = []
