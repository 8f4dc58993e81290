"""Defines slim Kubernetes objects with only the fields that gputile reads.

Every other field is skipped while decoding.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from gputile.api.affinity import Affinity, TopologySpreadConstraint
from gputile.api.conversion import WireObject, timestamp_of
from gputile.api.well_known import ConditionReason, ConditionType

POD_SCHEDULED = "PodScheduled"
SCHEDULING_GATED = "SchedulingGated"  # the reason until kube-scheduler has looked at a pod whose gates are gone
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
    """core/v1 ResourceClaim: the claim of the pod that a container uses, by the pod's own name for it."""

    name: str = ""


class ResourceRequirements(WireObject):
    """core/v1 ResourceRequirements."""

    limits: ResourceList = {}
    requests: ResourceList = {}
    claims: tuple[ContainerClaim, ...] = ()


class ContainerPort(WireObject):
    """core/v1 ContainerPort, as far as it takes a port of the node."""

    host_port: int = 0
    protocol: str = ""


class Container(WireObject):
    """core/v1 Container. ``restart_policy`` "Always" on an init container makes it a sidecar (KEP-753).

    Of the ports only those that the node opens too are kept: nobody reads the others.
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
    """core/v1 PodResourceClaim: a claim of the pod, which exists already or is made for it from a template."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodResourceClaimStatus(WireObject):
    """core/v1 PodResourceClaimStatus: the claim that was made from a template; "" where none is needed."""

    name: str = ""
    resource_claim_name: str = ""


class SchedulingGate(WireObject):
    """core/v1 PodSchedulingGate."""

    name: str = ""


class PodOS(WireObject):
    """core/v1 PodOS."""

    name: str = ""


class PodSpec(WireObject):
    """core/v1 PodSpec. ``affinity`` may name GPU models; the rest of it, and the spread constraints, only the simulator
    reads.

    ``resources`` is for the whole pod (KEP-2837), ``overhead`` what its RuntimeClass takes beside its containers.
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
    """core/v1 PodStatus. Of the conditions only those are kept that somebody reads.

    ``is_ready`` is made of the condition ``Ready`` and not a field of the API.
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
        """``namespace/name``, as logs and messages name a pod."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def finished(self) -> bool:
        """Whether every container has stopped for good: the phase is Succeeded or Failed."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def bound_at(self) -> str:
        """When the API server executed the pod's Binding, as Kubernetes writes times; "" where it does not say.

        BindingREST sets the condition, and the kubelet keeps its time, so this is a time of the clock that
        ``creationTimestamp`` is of, unlike those that gputile writes into annotations.
        """
        scheduled = (each for each in self.status.conditions if (each.type, each.status) == (POD_SCHEDULED, "True"))
        return next((each.last_transition_time or "" for each in scheduled), "")


class ContainerEnd(WireObject):
    """core/v1 ContainerStateTerminated: nothing is read of it but that it is there."""


class StartedContainerState(WireObject):
    """core/v1 StartedContainerState; ``terminated`` is set once the container has ended and not begun again."""

    terminated: ContainerEnd | None = None


class StartedContainer(WireObject):
    """core/v1 ContainerStatus with whether the container has ended."""

    name: str = ""
    state: StartedContainerState = msgspec.field(default_factory=StartedContainerState)


class PodStatusOnNode(PodStatus):
    """The status of a pod as the agent of its node reads it: with the states of its containers."""

    container_statuses: tuple[StartedContainer, ...] = ()
    init_container_statuses: tuple[StartedContainer, ...] = ()


class PodOnNode(Pod):
    """A pod as the agent of its node reads it; the control plane keeps tens of thousands, and less of each."""

    status: PodStatusOnNode = msgspec.field(default_factory=PodStatusOnNode)


def ended_containers(pod: Pod) -> frozenset[str]:
    """Return the names of the containers that have ended, as far as ``pod`` was read with them."""
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


def node_condition(kind: ConditionType, status: str, reason: ConditionReason, message: str) -> NodeCondition:
    """Return a condition of a node; ``status`` is "True", "False" or "Unknown"."""
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
        """The node's InternalIP, or "" where it reports none."""
        return next((a.address for a in self.status.addresses if a.type == "InternalIP"), "")


_Versioned = TypeVar("_Versioned", Pod, Node)


def unversioned(found: _Versioned) -> _Versioned:
    """Return an object without the number of its version: two that are equal then say the same."""
    metadata = msgspec.structs.replace(found.metadata, resource_version="")
    return msgspec.structs.replace(found, metadata=metadata)


def is_older(version: str, known: str) -> bool:
    """Return whether one resource version is certainly older than another of its kind: as numbers (KEP-5504)."""
    return version.isdecimal() and known.isdecimal() and int(version) < int(known)


class ListMeta(WireObject):
    """metav1.ListMeta. ``continue_`` is the token of the next page, "" on the last."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ObjectReference(msgspec.Struct, rename="camel", gc=False, omit_defaults=True, kw_only=True, frozen=True):
    """core/v1 ObjectReference. It can be part of a key."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class BindingMeta(WireObject):
    """The metadata of a Binding. The API server merges ``annotations`` into the pod.

    It checks ``uid`` and, where it is not empty, ``resource_version``: a Binding for a version that the pod has no more
    is never executed (kubernetes/pkg/registry/core/pod/storage, BindingREST.Create).
    """

    name: str
    namespace: str
    uid: str
    annotations: dict[str, str]
    resource_version: str = ""


class Binding(WireObject):
    """core/v1 Binding: the one write that sets nodeName and the allocation together (the ledger's commit)."""

    metadata: BindingMeta
    target: ObjectReference
    api_version: str = "v1"
    kind: str = "Binding"


class Status(WireObject):
    """metav1.Status: what the API server answers to a request that it refuses."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Any = None


# omit_defaults drops apiVersion and kind, which the API server needs; it is switched off for what is sent.
def encode_binding(binding: Binding) -> bytes:
    """Return the JSON body of a POST to ``pods/NAME/binding``."""
    body = {"apiVersion": binding.api_version, "kind": binding.kind, **msgspec.to_builtins(binding)}
    return msgspec.json.encode(body)


def changed_conditions(
    current: Iterable[NodeCondition], wanted: Iterable[NodeCondition], now: datetime
) -> list[dict[str, str]]:
    """Return the ``wanted`` conditions that differ from the ``current`` ones, seen at ``now``.

    A condition whose status is the same keeps the time of its last transition.
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
