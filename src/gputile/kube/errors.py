"""Defines the errors of requests to the API server.

The caller of a write has to know whether the API server executed the request. A Binding whose
response was lost may have bound its pod, so the pod's GPUs must stay booked until the outcome is
known. A refused Binding has not bound its pod. The attribute ``may_have_been_executed`` of each
error distinguishes the two cases.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gputile.api.core import Status

# 400: an admission webhook denied the request without a code. 413: the object is too large.
_REFUSED_FOR_GOOD = (400, 403, 413, 422)


class KubeError(Exception):
    """The base class of all errors of requests."""

    may_have_been_executed: bool = False
    retry_after: float = 0.0  # seconds that the API server asks to wait before the next attempt


class ConfigError(KubeError):
    """The kubeconfig, the service account or an exec plugin cannot be used. No request was sent."""


class PluginTimeout(ConfigError):
    """An exec plugin returned no credential within its time limit."""


class ConnectionFailed(KubeError):
    """No connection could be opened. No request was sent."""


class AnswerLost(KubeError):
    """The response is missing or incomplete. The request may have been executed."""

    may_have_been_executed = True


class BadAnswer(KubeError):
    """The response is complete, but it is not the expected JSON. A proxy may have answered."""

    may_have_been_executed = True


class ApiError(KubeError):
    """The API server refused the request, or failed to execute it.

    ``status`` is the HTTP status. ``reason``, ``details`` and ``server_message`` are copied from
    the metav1.Status. ``details`` is not validated. ``message`` adds the request and a remedy to
    the API server's message.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float = 0.0,
        server_message: str = "",
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.server_message = server_message
        self.details = details

    @property
    def refused_for_good(self) -> bool:
        """Whether a retry is pointless, because validation, RBAC or admission refused the write."""
        return self.status in _REFUSED_FOR_GOOD


class Unauthorized(ApiError):
    """401: the credentials are unknown or have expired."""


class Forbidden(ApiError):
    """403: the credentials lack a permission, or an admission plugin refused the request."""


class NotFound(ApiError):
    """404: the object does not exist, or the API server does not serve its kind."""


class Conflict(ApiError):
    """409: the object already exists (``reason`` AlreadyExists), or has changed (``Conflict``)."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old. A new list is necessary."""


class Invalid(ApiError):
    """422: the object breaks a rule of its kind."""


class TooManyRequests(ApiError):
    """429: the API server is overloaded, or a PodDisruptionBudget forbids an eviction for now."""


class ServerError(ApiError):
    """5xx: the API server or its storage failed, possibly after it had stored the change."""

    may_have_been_executed = True


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}
_LONGEST_MESSAGE = 4000  # characters of a server's message
_STATUS = msgspec.json.Decoder(Status)


def api_error(
    method: str, path: str, status: int, body: bytes, retry_after: float = 0.0
) -> ApiError:
    """Return the error for a response whose ``body`` is a metav1.Status or a proxy's text."""
    try:
        found = _STATUS.decode(body)
    except msgspec.MsgspecError:
        found = Status(message=body[:200].decode(errors="replace").strip())
    return status_error(method, path, status, found, retry_after)


def status_error(
    method: str, path: str, status: int, found: Status, retry_after: float = 0.0
) -> ApiError:
    """Return the error for the metav1.Status of a failed request or watch."""
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    parts = [f"{method} {path}: {status} {found.reason or kind.__name__}"]
    if found.message:
        parts.append(found.message[:_LONGEST_MESSAGE])
    if status == 401:
        parts.append(
            "renew the token, certificate or exec plugin login of the kubeconfig or service account"
        )
    if status < 400:
        parts.append("the server redirects: is this an API server?")
    return kind(status, found.reason, "; ".join(parts), retry_after, found.message, found.details)
