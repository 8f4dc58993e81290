"""Defines Kubernetes objects with only the fields that gputile reads. Other fields are skipped."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from gputile.api.affinity import Affinity, TopologySpreadConstraint
from gputile.api.conversion import WireObject, timestamp_of
from gputile.api.well_known import ConditionReason, ConditionType

POD_SCHEDULED = "PodScheduled"
# The reason of a gated pod's condition PodScheduled, until kube-scheduler first tries the pod
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
    """core/v1 ResourceClaim: the name of an entry of the pod's ``resourceClaims``."""

    name: str = ""


class ResourceRequirements(WireObject):
    """core/v1 ResourceRequirements."""

    limits: ResourceList = {}
    requests: ResourceList = {}
    claims: tuple[ContainerClaim, ...] = ()


class ContainerPort(WireObject):
    """core/v1 ContainerPort, with only the fields of the host port."""

    host_port: int = 0
    protocol: str = ""


class Container(WireObject):
    """core/v1 Container. Only ports with a ``hostPort`` are stored.

    An init container whose ``restart_policy`` is "Always" is a sidecar (KEP-753).
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
    """core/v1 PodResourceClaim: an existing claim, or a template to create a claim from."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodResourceClaimStatus(WireObject):
    """core/v1 PodResourceClaimStatus: the claim from a template, or "" if none is needed."""

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

    ``resources`` is for the whole pod (KEP-2837). ``overhead`` comes from the RuntimeClass.
    Scheduling reads GPU models from ``affinity``. Only the simulator reads the rest of ``affinity``
    and the topology spread constraints.
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

    ``is_ready`` is not a field of the API. It is derived from the condition ``Ready``.
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
        """Whether the pod's phase is Succeeded or Failed, so that all its containers have ended."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def bound_at(self) -> str:
        """The Kubernetes timestamp of the pod's Binding, or "" if the status does not have it.

        The API server sets this time by its own clock, like ``creationTimestamp``. The kubelet
        does not change the time. The times in gputile's annotations come from other clocks.
        """
        scheduled = (
            each
            for each in self.status.conditions
            if (each.type, each.status) == (POD_SCHEDULED, "True")
        )
        return next((each.last_transition_time or "" for each in scheduled), "")


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
    """Build a node condition whose ``status`` is "True", "False" or "Unknown"."""
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
        """The node's address of type InternalIP, or "" if the node has none."""
        return next((a.address for a in self.status.addresses if a.type == "InternalIP"), "")


_Versioned = TypeVar("_Versioned", Pod, Node)


def unversioned(found: _Versioned) -> _Versioned:
    """Return a copy without the resourceVersion, so that two versions' contents can be compared."""
    metadata = msgspec.structs.replace(found.metadata, resource_version="")
    return msgspec.structs.replace(found, metadata=metadata)


def is_older(version: str, known: str) -> bool:
    """Return whether the resourceVersion ``version`` is a smaller number than ``known`` (KEP-5504).

    The result is False if one of the versions is not a number.
    """
    return version.isdecimal() and known.isdecimal() and int(version) < int(known)


class ListMeta(WireObject):
    """metav1.ListMeta. ``continue_`` is the token of the next page, or "" on the last page."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ObjectReference(
    msgspec.Struct, rename="camel", gc=False, omit_defaults=True, kw_only=True, frozen=True
):
    """core/v1 ObjectReference, frozen so that it can be a dictionary key."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class BindingMeta(WireObject):
    """The metadata of a Binding. The API server merges ``annotations`` into the pod.

    The API server refuses a Binding whose ``uid`` is not the pod's. It also refuses a
    ``resource_version`` that is set and outdated (BindingREST.Create in
    kubernetes/pkg/registry/core/pod/storage).
    """

    name: str
    namespace: str
    uid: str
    annotations: dict[str, str]
    resource_version: str = ""


class Binding(WireObject):
    """core/v1 Binding: one atomic write of the pod's ``nodeName`` and its allocation."""

    metadata: BindingMeta
    target: ObjectReference
    api_version: str = "v1"
    kind: str = "Binding"


class Status(WireObject):
    """metav1.Status: the body of the response to a failed request."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Any = None


# apiVersion and kind are added, because omit_defaults leaves them out.
def encode_binding(binding: Binding) -> bytes:
    """Return the JSON body of a POST to ``pods/NAME/binding``."""
    body = {"apiVersion": binding.api_version, "kind": binding.kind, **msgspec.to_builtins(binding)}
    return msgspec.json.encode(body)


def changed_conditions(
    current: Iterable[NodeCondition], wanted: Iterable[NodeCondition], now: datetime
) -> list[dict[str, str]]:
    """Return a patch with the ``wanted`` conditions that differ from the ``current`` conditions.

    The patch sets ``lastTransitionTime`` to ``now`` where the status of a condition changes.
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
