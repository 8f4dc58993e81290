"""Defines what can go wrong between gputile and the API server.

The question that every caller of a write has to answer is whether the request was executed. A Binding whose answer got
lost may well have bound its pod, and its GPUs must not be given away before that is known; a Binding that was refused
certainly has not. So each error says it: ``may_have_been_executed``.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gputile.api.core import Status

# An admission webhook that denies without naming a code makes it a 400; 413 is an object that is too long.
_REFUSED_FOR_GOOD = (400, 403, 413, 422)


class KubeError(Exception):
    """The base of all errors of a request."""

    may_have_been_executed: bool = False
    retry_after: float = 0.0  # seconds that the API server asks to wait before the next attempt


class ConfigError(KubeError):
    """The kubeconfig, the service account or an exec plugin cannot be used. Nothing was sent."""


class PluginTimeout(ConfigError):
    """An exec plugin gave no credential in time."""


class ConnectionFailed(KubeError):
    """No connection came about. Nothing was sent."""


class AnswerLost(KubeError):
    """The request was sent, or may have been, and no complete answer came: a time-out or a broken connection."""

    may_have_been_executed = True


class BadAnswer(KubeError):
    """The answer is complete but is not the JSON that the API server speaks: a proxy's page, or a corrupt stream."""

    may_have_been_executed = True


class ApiError(KubeError):
    """The API server answered that it does not do what it was asked: HTTP ``status``, machine-readable ``reason``.

    ``said`` is its answer alone, ``message`` with what it was asked, and what may help. ``details`` are those of the
    metav1.Status, as they came.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float = 0.0,
        said: str = "",
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.said = said
        self.details = details

    @property
    def refused_for_good(self) -> bool:
        """Whether the same write is refused again: by what it writes, by RBAC, or by an admission webhook or policy."""
        return self.status in _REFUSED_FOR_GOOD


class Unauthorized(ApiError):
    """401: the credentials are unknown or have expired."""


class Forbidden(ApiError):
    """403: the credentials are known but lack a permission, or an admission plugin refused."""


class NotFound(ApiError):
    """404: no such object, or no such kind of object."""


class Conflict(ApiError):
    """409: the object exists already (``reason`` AlreadyExists) or has changed since it was read (Conflict)."""


class Gone(ApiError):
    """410: the resource version or continue token is too old; only a new list helps."""


class Invalid(ApiError):
    """422: the object breaks a rule of its kind."""


class TooManyRequests(ApiError):
    """429: the API server sheds load; ``retry_after`` says for how long to leave it alone."""


class Redirected(ApiError):
    """3xx: the server sends its clients elsewhere, which an API server does not do."""


class ServerError(ApiError):
    """5xx: the API server, or what it depends on, failed, perhaps after the change was stored."""

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
_LONG_S = 5.0  # of a pause that is worth telling
_LONGEST_MESSAGE = 4000  # characters of what a server says
_FOR_EVER_S = 1e9
_LONGEST_TARGET = 200  # characters of a redirect's target that are shown
_STATUS = msgspec.json.Decoder(Status)


def api_error(method: str, path: str, status: int, body: bytes, retry_after: float = 0.0) -> ApiError:
    """Return the error for an answer of ``status``; ``body`` is a metav1.Status, or what a proxy said instead."""
    try:
        said = _STATUS.decode(body)
    except msgspec.MsgspecError:
        said = Status(message=body[:200].decode(errors="replace").strip())
    return status_error(method, path, status, said, retry_after)


def redirected(method: str, path: str, status: int, server: str, target: str) -> Redirected:
    """Return the error for a ``server`` that sends its clients to ``target`` ("" where it does not say to where)."""
    where = f" to {target[:_LONGEST_TARGET]!r}" if target else ""
    said = f"{server} redirects{where}, and redirects are not followed: what answers there is no API server"
    remedy = "set `server` of the kubeconfig's cluster to the API server's own address"
    return Redirected(status, "", f"{method} {path}: {status} Redirected; {said}; {remedy}", said=said)


def status_error(method: str, path: str, status: int, said: Status, retry_after: float = 0.0) -> ApiError:
    """Return the error for a metav1.Status that says ``status``, as a failed request or a watch delivers it."""
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    parts = [f"{method} {path}: {status} {said.reason or kind.__name__}"]
    if said.message:
        parts.append(said.message[:_LONGEST_MESSAGE])
    if retry_after > _LONG_S:
        parts.append(f"it asks clients to wait {min(retry_after, _FOR_EVER_S):,.0f} s")
    remedy = _remedy(status, method, path)
    if remedy:
        parts.append(remedy)
    return kind(status, said.reason, "; ".join(parts), retry_after, said.message, said.details)


def _remedy(status: int, method: str, path: str) -> str:
    if status == 401:
        return "renew the token, certificate or exec plugin login of the kubeconfig or service account"
    if status == 403:
        return f"if RBAC refused it, grant {permission_of(method, path)}"
    return ""


_VERBS = {"POST": "create", "PATCH": "patch"}


def permission_of(method: str, path: str) -> str:
    """Return the permission for ``method`` on ``path`` (its query included) in words: verb, resource, group, where."""
    resource_path, _, query = path.partition("?")
    segments = resource_path.strip("/").split("/")
    if segments[0] == "api" and len(segments) > 2:
        group, rest = "", segments[2:]
    elif segments[0] == "apis" and len(segments) > 3:
        group, rest = segments[1], segments[3:]
    else:
        return f'verb "{method.lower()}" on the non-resource URL "{resource_path}"'
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    verb = _VERBS.get(method) or _read_verb(named=len(rest) > 1, watched="watch=" in query)
    resource = "/".join([rest[0], *rest[2:3]])
    where = f'in namespace "{namespace}"' if namespace else "in the whole cluster"
    return f'verb "{verb}" on resource "{resource}" of API group "{group}" {where}'


def _read_verb(*, named: bool, watched: bool) -> str:
    if watched:
        return "watch"
    return "get" if named else "list"
