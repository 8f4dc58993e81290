"""Defines the JSON of admission webhooks (admission.k8s.io/v1 AdmissionReview)."""

import base64

import msgspec

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"


class _ReviewMessage(msgspec.Struct, rename="camel", kw_only=True):
    """Common settings of the messages; fields that are not read are skipped."""


class UserInfo(_ReviewMessage):
    """Who asks (authentication.k8s.io/v1 UserInfo)."""

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
    """What is to be admitted. ``object`` and ``old_object`` stay text until it is known what they are."""

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
    """What the API server sends."""

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
    """Return the answer that lets the request through; ``patch`` is a JSON patch, empty for none."""
    response = _Response(uid=uid, allowed=True, warnings=list(warnings))
    if patch:
        response.patch_type, response.patch = "JSONPatch", base64.b64encode(patch).decode()
    return _ENCODER.encode(_ReviewAnswer(response=response))


def encode_refused(uid: str, message: str, warnings: tuple[str, ...] = ()) -> bytes:
    """Return the answer that refuses the request as Invalid (422), as the API server does for its own rules."""
    status = _ReviewStatus(message=message, reason="Invalid", code=422)
    return _ENCODER.encode(
        _ReviewAnswer(response=_Response(uid=uid, allowed=False, status=status, warnings=list(warnings)))
    )
