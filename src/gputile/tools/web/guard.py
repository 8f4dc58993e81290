"""Admits only the browser of the person who started the page, or viewers who have logged in.

Without a login, the page listens on loopback. Every user of the machine and every page in the
browser can reach that address. A request must therefore name this machine in its Host header
(against DNS rebinding), and must not come from another origin. It must also contain the secret from
the printed address. The browser stores this secret in a cookie.

In the cluster, a viewer sends a token once and gets a session secret in a cookie. Scripts cannot
read the cookie, and browsers do not send it with other sites' requests. Unlike the token, the
secret gives access to this page only.
"""

import hmac
import html
import ipaddress
from collections.abc import Mapping
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from gputile.kube.errors import KubeError
from gputile.support.http_requests import BodyReader, BodyRefused
from gputile.support.http_server import Handler
from gputile.tools.web.viewers import NotAdmitted, Rights, Viewers

_COOKIE: Final = "gputile"
_OPEN_AGAIN: Final = (
    "open the address that gputile web has printed: it contains the secret for this page\n"
)
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
SECURITY_HEADERS: Final = web.RequestKey[Mapping[str, str]]("security headers")
"""The security headers of the response, for handlers that send the response themselves."""
SESSION_COOKIE: Final = "__Host-gputile"
RIGHTS, SECRET = web.RequestKey("rights", Rights), web.RequestKey("secret", str)
LOGIN, LOGOUT = "/login", "/logout"
LARGEST_TOKEN: Final = 64 * 1024
_HEADERS: Final = {
    **HEADERS,
    "content-security-policy": CONTENT_POLICY.replace("form-action 'none'", "form-action 'self'"),
    # With no-referrer, the browser would send forms with the origin "null".
    "referrer-policy": "same-origin",
}
_LOGGED_OUT: Final = "you are not logged in (any more): reload this page\n"


class Guard:
    """Passes requests with ``token`` to the page, and adds security headers to every response."""

    def __init__(self, app: Handler, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        return await with_headers(request, self._refusal(request), self._app, HEADERS)

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        host, origins = request.headers.get("Host", ""), request.headers.getall("Origin", [])
        if not is_this_machine(host):
            return web.Response(
                status=421, text="this page answers to localhost, 127.0.0.1 and [::1] only\n"
            )
        if any(origin != f"http://{host}" for origin in origins):
            return web.Response(status=403, text="requests of other pages are refused\n")
        if request.method not in ("GET", "HEAD") and not origins:
            return web.Response(
                status=403, text="a request other than GET or HEAD must have an Origin header\n"
            )
        given = request.query.getall("token", [])
        if request.path == "/" and request.method == "GET" and any(map(self._is_token, given)):
            return self._admitted(own_cookie(_COOKIE, host))
        if not any(map(self._is_token, cookies(request, own_cookie(_COOKIE, host)))):
            return web.Response(status=401, text=_OPEN_AGAIN)
        return None

    def _admitted(self, cookie: str) -> web.Response:
        """Set a cookie that contains the secret, and redirect to the address without it."""
        answer = web.Response(status=303, headers={"Location": "/"})
        answer.set_cookie(cookie, self._token, httponly=True, samesite="lax", path="/")
        return answer

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="surrogateescape"), self._token.encode())


def is_this_machine(host: str) -> bool:
    """Return whether a Host header names loopback. Any port is valid, as ports may be forwarded."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def own_cookie(name: str, host: str) -> str:
    """Return ``name`` with the port of the Host header, as the name of this page's cookie.

    Browsers share cookies among all ports of a host. Without the port in the name, two
    pages on one machine would overwrite each other's cookies.
    """
    try:
        port = urlsplit(f"//{host}").port
    except ValueError:
        port = None
    return name if port is None else f"{name}-{port}"


def cookies(request: web.BaseRequest, name: str) -> list[str]:
    """Return the values of all cookies with this name. A browser may send several."""
    texts = request.headers.getall("Cookie", [])
    parts = (part.partition("=") for text in texts for part in text.split(";"))
    return [value.strip() for found, _, value in parts if found.strip() == name]


async def with_headers(
    request: web.BaseRequest, answer: web.Response | None, app: Handler, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Add ``headers`` to ``answer``, or to the response of ``app`` if ``answer`` is None."""
    request[SECURITY_HEADERS] = headers
    found = answer or await app(request)
    if not found.prepared:
        found.headers.update(headers)
    return found


class LoginGuard:
    """Passes the requests of logged-in viewers to the page, together with the viewers' rights.

    Without a session, a browser can only load static files and log in.
    """

    def __init__(self, app: Handler, viewers: Viewers) -> None:
        self._app = app
        self._viewers = viewers
        self._bodies = BodyReader(LARGEST_TOKEN)
        self._page = (
            files("gputile.tools.web").joinpath("static", "login.html").read_text(encoding="utf-8")
        )

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        return await with_headers(request, await self._answer(request), self._app, _HEADERS)

    async def _answer(self, request: web.BaseRequest) -> web.Response | None:
        """Answer logins, logouts and refused requests. Return None if the page must answer."""
        path, reads = request.path, request.method in ("GET", "HEAD")
        host = request.headers.get("Host", "")
        # Browsers send the Origin header with every request other than GET and HEAD.
        if not reads and request.headers.getall("Origin", []) != [f"https://{host}"]:
            return web.Response(
                status=403, text="requests other than GET and HEAD must come from this page\n"
            )
        if path.startswith("/static/"):
            return None
        if path == LOGIN:
            return (
                self._form()
                if reads
                else await self._log_in(request, own_cookie(SESSION_COOKIE, host))
            )
        secret, rights = "", None
        for secret in cookies(request, own_cookie(SESSION_COOKIE, host)):
            rights = await self._viewers.rights(secret)
            if rights is not None:
                break
        if path == LOGOUT and not reads:
            self._viewers.end(secret)
            return _redirect(LOGIN)
        if rights is None:
            return _redirect(LOGIN) if path == "/" else web.Response(status=401, text=_LOGGED_OUT)
        request[RIGHTS], request[SECRET] = rights, secret
        return None

    async def _log_in(self, request: web.BaseRequest, cookie: str) -> web.Response:
        try:
            form = parse_qs((await self._bodies.body(request)).decode("ascii", "replace"))
        except BodyRefused as refused:
            return self._form(str(refused), refused.status)
        token = "".join(form.get("token", [])).strip()
        if not token:
            return self._form("enter a token", 400)
        try:
            secret = await self._viewers.admit(token)
        except NotAdmitted as error:
            return self._form(str(error), error.status)
        except KubeError:
            return self._form("the cluster does not answer; try again", 503)
        answer = _redirect("/")
        answer.set_cookie(cookie, secret, httponly=True, secure=True, samesite="lax", path="/")
        return answer

    def _form(self, problem: str = "", status: int = 200) -> web.Response:
        alert = f'<p class="bad-box" role="alert">{html.escape(problem)}</p>' if problem else ""
        text = self._page.replace("<!-- problem -->", alert)
        return web.Response(status=status, text=text, content_type="text/html")


def _redirect(path: str) -> web.Response:
    return web.Response(status=303, headers={"Location": path})
