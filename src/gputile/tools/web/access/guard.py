"""Admits only the browser of the person who started the page, and no other page or user.

The page listens on loopback, which every user of the machine reaches, and every page that the browser has open could
ask for. So a request names this machine (DNS rebinding), comes from this page (other origins), and shows the secret
that the printed address has; the browser keeps it in a cookie.
"""

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_COOKIE: Final = "gputile"
_OPEN_AGAIN: Final = "open the address that gputile web has printed: it has the secret that this page needs\n"
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Lets those through who show ``token``; every answer has the headers that bind the browser."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        answer = self._refusal(scope)
        await (answer or self._app)(scope, receive, bound(send, HEADERS))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = scope["headers"]
        hosts = values(headers, b"host")
        if len(hosts) != 1 or not is_this_machine(hosts[0]):
            return PlainTextResponse("this page answers to localhost, 127.0.0.1 and [::1] only\n", 421)
        origins = values(headers, b"origin")
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            return PlainTextResponse("another page may not ask\n", 403)
        if scope["method"] not in ("GET", "HEAD") and not origins:
            return PlainTextResponse("a request that is more than reading names its origin\n", 403)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if scope["path"] == "/" and scope["method"] == "GET" and any(map(self._is_token, given)):
            return self._admitted(own_cookie(_COOKIE, headers))
        if not any(map(self._is_token, cookies(headers, own_cookie(_COOKIE, headers)))):
            return PlainTextResponse(_OPEN_AGAIN, 401)
        return None

    def _admitted(self, cookie: str) -> Response:
        """Have the browser keep the secret, and its address bar forget it."""
        answer = RedirectResponse("/", 303)
        answer.set_cookie(cookie, self._token, httponly=True, samesite="lax", path="/")
        return answer

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def is_this_machine(host: str) -> bool:
    """Return whether a Host header names loopback; a port may differ, since ports are forwarded."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    """Return what the headers of a name say."""
    return [value.decode("latin-1") for key, value in headers if key == name]


def own_cookie(name: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return what a page's cookie is called: with the port that the browser asks.

    A browser sends a host's cookies to all of its ports, so pages on two ports would overwrite each other's.
    """
    hosts = values(headers, b"host")
    try:
        port = urlsplit(f"//{hosts[0]}").port if len(hosts) == 1 else None
    except ValueError:
        port = None
    return name if port is None else f"{name}-{port}"


def cookies(headers: Iterable[tuple[bytes, bytes]], name: str) -> list[str]:
    """Return the values of the cookies of a name, whatever other programs have put beside them."""
    parts = (part.partition("=") for text in values(headers, b"cookie") for part in text.split(";"))
    return [value.strip() for found, _, value in parts if found.strip() == name]


def bound(send: Send, headers: Mapping[str, str]) -> Send:
    """Return ``send``, which adds these headers to each answer."""

    async def send_bound(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(headers)
        await send(message)

    return send_bound
