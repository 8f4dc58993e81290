"""Who looks at a page that serves in the cluster: each shows a token, and sees the names that it may list itself.

The API server says whose a token is (TokenReview) and what that user may list (SubjectAccessReview), and is asked again
while somebody looks: whoever loses a right loses the sight of what it showed. No token leaves this process otherwise.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from gputile.kube.connection import Connection
from gputile.kube.errors import BadAnswer, KubeError

RECHECK_S: Final = 60.0
STALE_S: Final = 300.0  # how old rights may be while the API server does not answer
SESSION_S: Final = 8 * 3600.0
MOST_SESSIONS: Final = 1000
MOST_NAMESPACES: Final = 500  # of which the rights are asked; the names of others are not shown
_AT_ONCE: Final = 8
_SECRET_BYTES: Final = 24
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Rights:
    """Of which namespaces' pods somebody may know the names: of all, ``everywhere``, or of some."""

    everywhere: bool = False
    namespaces: frozenset[str] = frozenset()

    def sees(self, namespace: str) -> bool:
        """Return whether the names of a namespace's pods may be shown."""
        return self.everywhere or namespace in self.namespaces


ALL_RIGHTS: Final = Rights(everywhere=True)


class NotAdmitted(Exception):
    """Why somebody sees nothing; ``status`` is the HTTP status that says so."""

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
_TOKEN_REVIEW: Final = msgspec.json.Decoder(_TokenReview)
_ACCESS_REVIEW: Final = msgspec.json.Decoder(_AccessReview)


@dataclass(slots=True)
class _Session:
    token: str
    user: _User
    rights: Rights
    checked_s: float
    ends_s: float


class Viewers:
    """Those who have shown a token. ``namespaces`` returns those that have pods on the page."""

    def __init__(self, connection: Connection, namespaces: Callable[[], Iterable[str]]) -> None:
        self._connection = connection
        self._namespaces = namespaces
        self._sessions: dict[str, _Session] = {}
        self._checking: dict[str, asyncio.Lock] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def admit(self, token: str) -> str:
        """Return the secret of a new session of whoever has this token.

        Raises:
            NotAdmitted: the API server does not know it, or its user may not list nodes.
            KubeError: the API server cannot be asked.
        """
        user, rights = await self._check(token)
        now_s = time.monotonic()
        self._forget(now_s)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self._sessions[secret] = _Session(token, user, rights, now_s, now_s + SESSION_S)
        self._checking[secret] = asyncio.Lock()
        return secret

    async def rights(self, secret: str) -> Rights | None:
        """Return what the viewer of a session may see now, None where there is no such session (any more)."""
        session = self._sessions.get(secret)
        if session is None:
            return None
        async with self._checking[secret]:
            now_s = time.monotonic()
            if now_s >= session.ends_s or not await self._is_current(session, now_s):
                self.end(secret)
        return session.rights if secret in self._sessions else None

    async def may_list(self, secret: str, resource: str, namespace: str) -> bool:
        """Return whether the viewer of a session may list a core resource in a namespace.

        Raises:
            KubeError: the API server cannot be asked.
        """
        session = self._sessions.get(secret)
        return session is not None and await self._may_list(session.user, resource, namespace)

    def end(self, secret: str) -> None:
        """End a session."""
        self._sessions.pop(secret, None)
        self._checking.pop(secret, None)

    async def _is_current(self, session: _Session, now_s: float) -> bool:
        """Ask again what a viewer may see, where that was long ago; return whether it may see anything."""
        if now_s - session.checked_s < RECHECK_S:
            return True
        try:
            session.user, session.rights = await self._check(session.token)
        except NotAdmitted:
            return False
        except KubeError:
            return now_s - session.checked_s < STALE_S
        session.checked_s = now_s
        return True

    async def _check(self, token: str) -> tuple[_User, Rights]:
        user = await self._whose(token)
        if not await self._may_list(user, "nodes", ""):
            raise NotAdmitted(403, f"{user.username} may not list nodes, so it may not see this page")
        if await self._may_list(user, "pods", ""):
            return user, ALL_RIGHTS
        names = sorted(self._namespaces())[:MOST_NAMESPACES]
        allowed = await asyncio.gather(*(self._may_list(user, "pods", name) for name in names))
        return user, Rights(namespaces=frozenset(name for name, may in zip(names, allowed, strict=True) if may))

    async def _whose(self, token: str) -> _User:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = (await self._review(_TOKEN_REVIEWS, body, _TOKEN_REVIEW)).status
        if not status.authenticated or not status.user.username:
            raise NotAdmitted(401, "the cluster does not know this token, or it has expired")
        return status.user

    async def _may_list(self, user: _User, resource: str, namespace: str) -> bool:
        attributes = {"verb": "list", "resource": resource, "version": "v1"}
        if namespace:
            attributes["namespace"] = namespace
        named = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra}
        spec = {**{name: value for name, value in named.items() if value}, "resourceAttributes": attributes}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        status = (await self._review(_ACCESS_REVIEWS, body, _ACCESS_REVIEW)).status
        return status.allowed and not status.denied

    async def _review(self, path: str, body: object, decoder: msgspec.json.Decoder[_Review]) -> _Review:
        async with self._turns:
            answer = await self._connection.post(path, msgspec.json.encode(body))
        try:
            return decoder.decode(answer)
        except msgspec.MsgspecError as error:
            raise BadAnswer(f"POST {path}: the answer is no JSON of an API server") from error

    def _forget(self, now_s: float) -> None:
        """Forget sessions that have ended, and the oldest where there are too many."""
        for secret in [secret for secret, each in self._sessions.items() if each.ends_s <= now_s]:
            self.end(secret)
        while len(self._sessions) >= MOST_SESSIONS:
            self.end(next(iter(self._sessions)))
