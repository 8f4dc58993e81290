"""Defines Kubernetes objects with only the fields that gputile reads. Decoding skips all others."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from gputile.api.affinity import Affinity, TopologySpreadConstraint
from gputile.api.conversion import WireObject, timestamp_of
from gputile.api.well_known import ConditionReason, ConditionType

POD_SCHEDULED = "PodScheduled"
# the reason until kube-scheduler first tries the pod without gates
SCHEDULING_GATED = "SchedulingGated"
POD_READY = "Ready"

Quantity = str | int | float
ResourceList = dict[str, Quantity]


class OwnerReference(WireObject):
    """metav1.OwnerReference."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(WireObject):
    """metav1.ObjectMeta."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: tuple[OwnerReference, ...] = ()


class StoredObject(WireObject):
    """An object that the API server stores."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class ContainerClaim(WireObject):
    """core/v1 ResourceClaim: a claim that a container uses.

    ``name`` is that of the pod's ``resourceClaims`` entry.
    """

    name: str = ""


class ResourceRequirements(WireObject):
    """core/v1 ResourceRequirements."""

    limits: ResourceList = {}
    requests: ResourceList = {}
    claims: tuple[ContainerClaim, ...] = ()


class ContainerPort(WireObject):
    """core/v1 ContainerPort: its host port."""

    host_port: int = 0
    protocol: str = ""


class Container(WireObject):
    """core/v1 Container.

    ``restart_policy`` "Always" on an init container makes it a sidecar (KEP-753). Only ports with a
    ``hostPort`` are stored.
    """

    name: str = ""
    resources: ResourceRequirements = msgspec.field(default_factory=ResourceRequirements)
    restart_policy: str = ""
    ports: tuple[ContainerPort, ...] = ()

    def __post_init__(self) -> None:
        if self.ports:
            self.ports = tuple(port for port in self.ports if port.host_port)


class Toleration(WireObject):
    """core/v1 Toleration."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Taint(WireObject):
    """core/v1 Taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


class PodResourceClaim(WireObject):
    """core/v1 PodResourceClaim: an existing claim, or a template from which one is created."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodResourceClaimStatus(WireObject):
    """core/v1 PodResourceClaimStatus: the claim created from a template; "" if none is needed."""

    name: str = ""
    resource_claim_name: str = ""


class SchedulingGate(WireObject):
    """core/v1 PodSchedulingGate."""

    name: str = ""


class PodOS(WireObject):
    """core/v1 PodOS."""

    name: str = ""


class PodSpec(WireObject):
    """core/v1 PodSpec.

    ``resources`` is for the whole pod (KEP-2837), ``overhead`` is that of its RuntimeClass. GPU
    models are read from ``affinity``; the rest of it, and the spread constraints, is for the
    simulator.
    """

    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: ResourceList = {}
    os: PodOS | None = None
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduler_name: str = ""
    priority: int | None = None
    preemption_policy: str = ""
    termination_grace_period_seconds: int | None = None


class PodCondition(WireObject):
    """core/v1 PodCondition."""

    type: str = ""
    status: str = ""
    reason: str = ""
    last_transition_time: str | None = None


class PodStatus(WireObject):
    """core/v1 PodStatus. Only the condition ``PodScheduled`` is stored.

    ``is_ready`` is derived from the condition ``Ready`` and not a field of the API.
    """

    phase: str = ""
    nominated_node_name: str = ""
    conditions: tuple[PodCondition, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    is_ready: bool = False

    def __post_init__(self) -> None:
        for each in self.conditions:
            if each.type == POD_READY:
                self.is_ready = each.status == "True"
        self.conditions = tuple(each for each in self.conditions if each.type == POD_SCHEDULED)


class Pod(StoredObject):
    """core/v1 Pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def finished(self) -> bool:
        """Whether all containers have ended: the phase is Succeeded or Failed."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def bound_at(self) -> str:
        """When the API server executed the pod's Binding, as a Kubernetes timestamp; "" if unknown.

        BindingREST sets the condition, and the kubelet does not change its time. So the time is by
        the API server's clock, like ``creationTimestamp``, and unlike times in gputile's
        annotations.
        """
        scheduled = (
            each
            for each in self.status.conditions
            if (each.type, each.status) == (POD_SCHEDULED, "True")
        )
        return next((each.last_transition_time or "" for each in scheduled), "")


class ContainerEnd(WireObject):
    """core/v1 ContainerStateTerminated; only its presence matters."""


class StartedContainerState(WireObject):
    """core/v1 ContainerState; ``terminated`` is set if the container ended without a restart."""

    terminated: ContainerEnd | None = None


class StartedContainer(WireObject):
    """core/v1 ContainerStatus: whether the container has ended."""

    name: str = ""
    state: StartedContainerState = msgspec.field(default_factory=StartedContainerState)


class PodStatusOnNode(PodStatus):
    """The status of a pod with its containers' states, for the agent of its node."""

    container_statuses: tuple[StartedContainer, ...] = ()
    init_container_statuses: tuple[StartedContainer, ...] = ()


class PodOnNode(Pod):
    """A pod for its node's agent; the control plane stores tens of thousands, with fewer fields."""

    status: PodStatusOnNode = msgspec.field(default_factory=PodStatusOnNode)


def ended_containers(pod: Pod) -> frozenset[str]:
    """Return the names of the containers that have ended; none if ``pod`` is no ``PodOnNode``."""
    if not isinstance(pod, PodOnNode):
        return frozenset()
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return frozenset(each.name for each in statuses if each.state.terminated is not None)


class NodeSpec(WireObject):
    """core/v1 NodeSpec."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(WireObject):
    """core/v1 NodeAddress."""

    type: str = ""
    address: str = ""


class NodeCondition(WireObject):
    """core/v1 NodeCondition."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


def node_condition(
    kind: ConditionType, status: str, reason: ConditionReason, message: str
) -> NodeCondition:
    """Build a condition of a node; ``status`` is "True", "False" or "Unknown"."""
    return NodeCondition(type=kind, status=status, reason=reason, message=message)


class NodeStatus(WireObject):
    """core/v1 NodeStatus."""

    capacity: ResourceList = {}
    allocatable: ResourceList = {}
    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()


class Node(StoredObject):
    """core/v1 Node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def internal_ip(self) -> str:
        """The node's InternalIP; "" if it reports none."""
        return next((a.address for a in self.status.addresses if a.type == "InternalIP"), "")


_Versioned = TypeVar("_Versioned", Pod, Node)


def unversioned(found: _Versioned) -> _Versioned:
    """Return an object without its resourceVersion, to compare the content of two versions."""
    metadata = msgspec.structs.replace(found.metadata, resource_version="")
    return msgspec.structs.replace(found, metadata=metadata)


def is_older(version: str, known: str) -> bool:
    """Return whether a resourceVersion is older than another, compared as numbers (KEP-5504)."""
    return version.isdecimal() and known.isdecimal() and int(version) < int(known)


class ListMeta(WireObject):
    """metav1.ListMeta. ``continue_`` is the token of the next page, "" on the last."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ObjectReference(
    msgspec.Struct, rename="camel", gc=False, omit_defaults=True, kw_only=True, frozen=True
):
    """core/v1 ObjectReference; it is hashable."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class BindingMeta(WireObject):
    """The metadata of a Binding. The API server merges ``annotations`` into the pod.

    It checks ``uid``, and ``resource_version`` unless that is empty: a Binding for an outdated
    version of the pod is never executed (kubernetes/pkg/registry/core/pod/storage,
    BindingREST.Create).
    """

    name: str
    namespace: str
    uid: str
    annotations: dict[str, str]
    resource_version: str = ""


class Binding(WireObject):
    """core/v1 Binding: the write that sets nodeName and the allocation atomically."""

    metadata: BindingMeta
    target: ObjectReference
    api_version: str = "v1"
    kind: str = "Binding"


class Status(WireObject):
    """metav1.Status: the response to a failed request."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Any = None


# apiVersion and kind are added, since omit_defaults drops them.
def encode_binding(binding: Binding) -> bytes:
    """Return the JSON body of a POST to ``pods/NAME/binding``."""
    body = {"apiVersion": binding.api_version, "kind": binding.kind, **msgspec.to_builtins(binding)}
    return msgspec.json.encode(body)


def changed_conditions(
    current: Iterable[NodeCondition], wanted: Iterable[NodeCondition], now: datetime
) -> list[dict[str, str]]:
    """Return a patch with the ``wanted`` conditions that differ from the ``current`` ones.

    The time of the last transition is ``now`` if the status changes, and otherwise not patched.
    """
    have = {condition.type: condition for condition in current}
    time = timestamp_of(now)
    changed = []
    for condition in wanted:
        before = have.get(condition.type)
        if condition == before:
            continue
        entry = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastHeartbeatTime": time,
        }
        if before is None or before.status != condition.status:
            entry["lastTransitionTime"] = time
        changed.append(entry)
    return changed
