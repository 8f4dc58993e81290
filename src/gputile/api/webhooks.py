"""Defines the requests and responses of admission webhooks and of scheduler extenders.

``k8s.io/kube-scheduler/extender/v1`` defines the JSON of extenders. Its Go structs have no JSON
tags. So the keys are Go's field names, and nil is ``null``. Pods are encoded as core/v1 JSON.
"""

import base64

import msgspec

from gputile.api.core import Pod


class _ExtenderMessage(msgspec.Struct, rename="pascal", gc=False, kw_only=True):
    """The base of the extender's messages, whose JSON keys are Go's field names."""


class ExtenderArgs(_ExtenderMessage):
    """The arguments of ``filter`` and ``prioritize`` of a ``nodeCacheCapable`` extender."""

    pod: Pod
    node_names: list[str] | None = None


class FilterResult(_ExtenderMessage):
    """The result of ``filter``. Preemption is not tried on unresolvable nodes."""

    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(_ExtenderMessage):
    """The score of one node in the result of ``prioritize``, from 0 to 10."""

    host: str
    score: int


class ExtenderBindingArgs(_ExtenderMessage):
    """The arguments of ``bind``."""

    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class ExtenderBindingResult(_ExtenderMessage):
    """The result of ``bind``. An empty error means that the pod is bound."""

    error: str = ""


class MetaPod(_ExtenderMessage):
    """A victim, identified by its UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(_ExtenderMessage):
    """The victims on one node, and the number of PodDisruptionBudgets that evictions violate."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class ExtenderPreemptionArgs(_ExtenderMessage):
    """The arguments of ``preempt``: the victims that kube-scheduler chose on each node."""

    pod: Pod
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None


class ExtenderPreemptionResult(_ExtenderMessage):
    """The result of ``preempt``, which names victims by UID only."""

    node_name_to_meta_victims: dict[str, MetaVictims]


API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"


class _ReviewMessage(msgspec.Struct, rename="camel", kw_only=True):
    """The base of admission messages. The decoder skips unknown fields."""


class UserInfo(_ReviewMessage):
    """authentication.k8s.io/v1 UserInfo: the user who sent the request."""

    username: str = ""
    groups: list[str] = []


class GroupVersionKind(_ReviewMessage):
    """metav1.GroupVersionKind."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(_ReviewMessage):
    """metav1.GroupVersionResource."""

    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(_ReviewMessage):
    """A request to admit an object. The objects stay undecoded until their kind is checked."""

    uid: str
    kind: GroupVersionKind = msgspec.field(default_factory=GroupVersionKind)
    resource: GroupVersionResource = msgspec.field(default_factory=GroupVersionResource)
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = msgspec.field(default_factory=UserInfo)
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class AdmissionReview(_ReviewMessage):
    """The AdmissionReview that the API server sends."""

    api_version: str
    kind: str
    request: AdmissionRequest | None = None


class _ReviewStatus(_ReviewMessage, omit_defaults=True):
    message: str
    reason: str = ""
    code: int = 0


class _Response(_ReviewMessage, omit_defaults=True):
    uid: str
    allowed: bool
    status: _ReviewStatus | None = None
    patch_type: str = ""
    patch: str = ""
    warnings: list[str] = []


class _ReviewAnswer(_ReviewMessage):
    response: _Response
    api_version: str = API_VERSION
    kind: str = KIND


_ENCODER = msgspec.json.Encoder()


def encode_allowed(uid: str, patch: bytes = b"", warnings: tuple[str, ...] = ()) -> bytes:
    """Encode the response that allows the request. ``patch`` is a JSON patch, or empty."""
    response = _Response(uid=uid, allowed=True, warnings=list(warnings))
    if patch:
        response.patch_type, response.patch = "JSONPatch", base64.b64encode(patch).decode()
    return _ENCODER.encode(_ReviewAnswer(response=response))


def encode_refused(uid: str, message: str, warnings: tuple[str, ...] = ()) -> bytes:
    """Encode the response that denies the request as Invalid (422), like a failed validation."""
    status = _ReviewStatus(message=message, reason="Invalid", code=422)
    return _ENCODER.encode(
        _ReviewAnswer(
            response=_Response(uid=uid, allowed=False, status=status, warnings=list(warnings))
        )
    )
