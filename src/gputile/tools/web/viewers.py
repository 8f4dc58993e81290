"""Authorizes viewers of a page that runs in the cluster.

The API server authenticates a viewer's token (TokenReview), and decides what the user may list
(SubjectAccessReview). Both reviews are repeated while the page is open, so the page hides names
again when a viewer loses a right. The token is sent only to the API server.

The page hides the names of pods that a viewer may not list. It still shows the sizes of these pods,
so that the free memory is correct. Problems of nodes may contain names of pods, so only viewers who
may list all pods see these problems.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from gputile.kube.client import Connection
from gputile.kube.errors import AnswerLost, BadAnswer, KubeError
from gputile.tools.web.records import (
    Difference,
    NodeTile,
    NodeUsage,
    PendingPod,
    PodTile,
    PodUsageAnswer,
    UsageAnswer,
)

RECHECK_S: Final = 60.0
STALE_S: Final = 300.0  # how long names are shown while the API server does not answer
WAIT_S: Final = 2.0  # how long a request waits for new rights before it uses the known rights
RETRY_S: Final = 10.0  # the pause after a check that failed
SESSION_S: Final = 8 * 3600.0
MOST_SESSIONS: Final = 1000  # in total, for all users
_MOST_S: Final = 20.0  # the time limit for a check that has no earlier result to fall back on
MOST_NAMESPACES: Final = 500  # how many namespaces are checked; pods of others are hidden
_AT_ONCE: Final = 8
_SECRET_BYTES: Final = 24
HIDDEN: Final = "(hidden)"  # no Kubernetes name contains parentheses
_PROBLEMS: Final = (
    "this node has a problem; only viewers who may list the pods of all namespaces see which",
)
_PRIVATE: Final = "the use is unknown; only viewers who may list the pods of all namespaces see why"
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Rights:
    """The namespaces whose pods a viewer may list. ``everywhere`` means all namespaces."""

    everywhere: bool = False
    namespaces: frozenset[str] = frozenset()

    def sees(self, namespace: str) -> bool:
        return self.everywhere or namespace in self.namespaces


ALL_RIGHTS: Final = Rights(everywhere=True)
NO_NAMES: Final = Rights()


class NotAdmitted(Exception):
    """The viewer may not see the page. ``status`` is the HTTP status of the response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _User(msgspec.Struct, frozen=True, omit_defaults=True):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


_Review = TypeVar("_Review", _TokenReview, _AccessReview)
_Answer = TypeVar("_Answer")
_TOKEN_REVIEW: Final = msgspec.json.Decoder(_TokenReview)
_ACCESS_REVIEW: Final = msgspec.json.Decoder(_AccessReview)


@dataclass(slots=True)
class _Session:
    """The session of a viewer. Times are seconds of the monotonic clock."""

    token: str
    user: _User
    rights: Rights
    checked_s: float
    ends_s: float
    check: asyncio.Task[None] | None = None
    waits_until_s: float = 0.0  # requests wait for the check at most until this time
    again_s: float = 0.0  # when to retry after a failed check; 0 if the last check succeeded


class Viewers:
    """The sessions of viewers. ``namespaces`` returns the namespaces with pods on the page."""

    def __init__(self, connection: Connection, namespaces: Callable[[], Iterable[str]]) -> None:
        self._connection = connection
        self._namespaces = namespaces
        self._sessions: dict[str, _Session] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._checks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Cancel the checks in progress."""
        for each in self._checks:
            each.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def admit(self, token: str) -> str:
        """Create a session for the user of this token, and return its secret.

        Raises:
            NotAdmitted: the API server does not accept the token, or its user may not list nodes.
            KubeError: the API server does not answer.
        """
        user, rights = await _bounded(self._check(token))
        now_s = time.monotonic()
        self._make_room(now_s)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self._sessions[secret] = _Session(token, user, rights, now_s, now_s + SESSION_S)
        return secret

    async def rights(self, secret: str) -> Rights | None:
        """Return the current rights of a session, or None if there is no such session.

        While the API server does not answer, the last known rights remain valid for ``STALE_S``.
        After that time, the viewer may not see the names of any pods.
        """
        session = self._sessions.get(secret)
        if session is None:
            return None
        if time.monotonic() >= session.ends_s:
            self.end(secret)
        elif time.monotonic() - session.checked_s >= RECHECK_S:
            await self._refresh_rights(secret, session)
        if secret not in self._sessions:
            return None
        return session.rights if time.monotonic() - session.checked_s < STALE_S else NO_NAMES

    async def may_list(self, secret: str, resource: str, namespace: str) -> bool:
        """Return whether the user of a session may list a core resource in a namespace.

        Raises:
            KubeError: the API server does not answer.
        """
        session = self._sessions.get(secret)
        return session is not None and await _bounded(
            self._may_list(session.user, resource, namespace)
        )

    def user(self, secret: str) -> str:
        """Return the name of a session's user, or "" if there is no such session."""
        session = self._sessions.get(secret)
        return session.user.username if session is not None else ""

    def end(self, secret: str) -> None:
        self._sessions.pop(secret, None)

    async def _refresh_rights(self, secret: str, session: _Session) -> None:
        """Start a check of the rights. Wait up to ``WAIT_S``, unless the last check failed."""
        now_s = time.monotonic()
        if session.check is None and now_s >= session.again_s:
            session.waits_until_s = now_s if session.again_s else now_s + WAIT_S
            session.check = asyncio.create_task(self._recheck(secret, session))
            self._checks.add(session.check)
            session.check.add_done_callback(self._checks.discard)
        if session.check is not None and now_s < session.waits_until_s:
            await asyncio.wait({session.check}, timeout=session.waits_until_s - now_s)

    async def _recheck(self, secret: str, session: _Session) -> None:
        began_s = time.monotonic()
        try:
            session.user, session.rights = await self._check(session.token)
        except NotAdmitted:
            self.end(secret)
        except KubeError:
            session.again_s = time.monotonic() + RETRY_S
        else:
            session.checked_s, session.again_s = began_s, 0.0
        finally:
            session.check = None

    async def _check(self, token: str) -> tuple[_User, Rights]:
        user = await self._authenticate(token)
        if not await self._may_list(user, "nodes", ""):
            raise NotAdmitted(
                403, f"{user.username} may not list nodes, so it may not see this page"
            )
        if await self._may_list(user, "pods", ""):
            return user, ALL_RIGHTS
        names = sorted(self._namespaces())[:MOST_NAMESPACES]
        checks = [asyncio.ensure_future(self._may_list(user, "pods", name)) for name in names]
        try:
            allowed = await asyncio.gather(*checks)
        finally:
            for each in checks:  # if one check fails, the others are not needed
                each.cancel()
        return user, Rights(
            namespaces=frozenset(name for name, may in zip(names, allowed, strict=True) if may)
        )

    async def _authenticate(self, token: str) -> _User:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        status = (await self._review(_TOKEN_REVIEWS, body, _TOKEN_REVIEW)).status
        if not status.authenticated or not status.user.username:
            raise NotAdmitted(401, "the cluster does not accept this token; it may have expired")
        return status.user

    async def _may_list(self, user: _User, resource: str, namespace: str) -> bool:
        attributes = {"verb": "list", "resource": resource, "version": "v1"}
        if namespace:
            attributes["namespace"] = namespace
        named = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra}
        spec = {
            **{name: value for name, value in named.items() if value},
            "resourceAttributes": attributes,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }
        status = (await self._review(_ACCESS_REVIEWS, body, _ACCESS_REVIEW)).status
        return status.allowed and not status.denied

    async def _review(
        self, path: str, body: object, decoder: msgspec.json.Decoder[_Review]
    ) -> _Review:
        async with self._slots:
            answer = await self._connection.post(path, msgspec.json.encode(body))
        try:
            return decoder.decode(answer)
        except msgspec.MsgspecError as error:
            raise BadAnswer(f"POST {path}: the response is not the expected JSON") from error

    def _make_room(self, now_s: float) -> None:
        """Remove expired sessions, and make room for a new one.

        If there are too many, remove the oldest session of the user with the most sessions.
        """
        for secret in [secret for secret, each in self._sessions.items() if each.ends_s <= now_s]:
            self.end(secret)
        while len(self._sessions) >= MOST_SESSIONS:
            of_user = Counter(each.user.username for each in self._sessions.values())
            most = max(of_user.values())
            self.end(
                next(
                    secret
                    for secret, each in self._sessions.items()
                    if of_user[each.user.username] == most
                )
            )


async def _bounded(answer: Awaitable[_Answer]) -> _Answer:
    """Wait for the API server's response for at most ``_MOST_S`` seconds.

    Raises:
        AnswerLost: the time limit has passed.
    """
    try:
        async with asyncio.timeout(_MOST_S):
            return await answer
    except TimeoutError:
        raise AnswerLost(f"the API server did not answer within {_MOST_S:g} s") from None


def visible_nodes(nodes: Iterable[NodeTile], rights: Rights) -> list[NodeTile]:
    return [_node(each, rights) for each in nodes]


def visible_pending(pending: Iterable[PendingPod], rights: Rights) -> list[PendingPod]:
    return [each for each in pending if rights.sees(each.namespace)]


def visible_difference(found: Difference, rights: Rights) -> Difference:
    return Difference(
        nodes={name: _node(each, rights) for name, each in found.nodes.items()},
        nodes_gone=found.nodes_gone,
        pending={key: each for key, each in found.pending.items() if rights.sees(each.namespace)},
        pending_gone=tuple(key for key in found.pending_gone if rights.sees(key.partition("/")[0])),
    )


def visible_usage(found: UsageAnswer, rights: Rights) -> UsageAnswer:
    """Remove the usage of pods that the viewer may not list. The usage of GPUs remains."""
    nodes = {name: _usage(each, rights) for name, each in found.nodes.items()}
    return msgspec.structs.replace(found, nodes=nodes, trouble=_trouble(found.trouble, rights))


def visible_pod_usage(found: PodUsageAnswer, rights: Rights) -> PodUsageAnswer:
    return msgspec.structs.replace(found, trouble=_trouble(found.trouble, rights))


def _trouble(text: str, rights: Rights) -> str:
    """Hide an error, which may name an agent's pod, from viewers who may not list all pods."""
    return text if rights.everywhere or not text else _PRIVATE


def _node(node: NodeTile, rights: Rights) -> NodeTile:
    if rights.everywhere:
        return node
    named = [each for each in node.pods if rights.sees(each.namespace)]
    hidden = [_hidden(each) for each in node.pods if not rights.sees(each.namespace)]
    pods = (*named, *hidden)  # hidden pods come last, as their position would hint at their names
    return msgspec.structs.replace(node, pods=pods, problems=_PROBLEMS if node.problems else ())


def _hidden(pod: PodTile) -> PodTile:
    return PodTile(
        HIDDEN,
        HIDDEN,
        pod.shares,
        whole=pod.whole,
        reserved=pod.reserved,
        asked=pod.asked,
        instances=pod.instances,
    )


def _usage(usage: NodeUsage, rights: Rights) -> NodeUsage:
    if rights.everywhere:
        return usage
    pods = {key: each for key, each in usage.pods.items() if rights.sees(key.partition("/")[0])}
    return msgspec.structs.replace(usage, pods=pods, problem=_trouble(usage.problem, rights))
