"""Lets viewers into a page that serves in the cluster: each shows a token once and keeps a secret.

The secret is in a cookie that scripts cannot read and other sites' requests do not carry. It is worth nothing beside
this page, which the token would be.
"""

import html
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gputile.kube.errors import KubeError
from gputile.support.request_body import BodyReader, BodyRefused
from gputile.tools.web.access.guard import CONTENT_POLICY, HEADERS, bound, cookies, own_cookie, values
from gputile.tools.web.access.viewers import NotAdmitted, Viewers
from gputile.tools.web.page.assets import assets

SESSION_COOKIE: Final = "__Host-gputile"
RIGHTS, SECRET = "gputile.rights", "gputile.secret"  # what the page finds in a request's scope
LOGIN, LOGOUT = "/login", "/logout"
LARGEST_TOKEN: Final = 64 * 1024
_HEADERS: Final = {
    **HEADERS,
    "content-security-policy": CONTENT_POLICY.replace("form-action 'none'", "form-action 'self'"),
    "referrer-policy": "same-origin",  # with none, the browser would not name the origin of what a form sends
}
_AGAIN: Final = "you are not logged in (any more): load this page anew\n"


class LoginGuard:
    """Lets those through who have a session, with their rights; all others to the login alone."""

    def __init__(self, app: ASGIApp, viewers: Viewers) -> None:
        self._app = app
        self._viewers = viewers
        self._bodies = BodyReader(LARGEST_TOKEN)
        self._page = assets()["login.html"].body.decode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        answer = await self._answer(Request(scope, receive))
        await (answer or self._app)(scope, receive, bound(send, _HEADERS))

    async def _answer(self, request: Request) -> Response | None:
        """Return the answer of the login, None where the page answers."""
        # Not request.url.path, into which Starlette takes the Host header: routes go by the scope's.
        path, reads = request.scope["path"], request.method in ("GET", "HEAD")
        if not reads and not _from_here(request):
            return PlainTextResponse("a request that is more than reading comes from this page\n", 403)
        if path.startswith("/static/"):
            return None
        if path == LOGIN:
            return self._form() if reads else await self._log_in(request)
        secret, rights = "", None
        headers = request.scope["headers"]
        for secret in cookies(headers, own_cookie(SESSION_COOKIE, headers)):
            rights = await self._viewers.rights(secret)
            if rights is not None:
                break
        if path == LOGOUT and not reads:
            self._viewers.end(secret)
            return RedirectResponse(LOGIN, 303)
        if rights is None:
            return RedirectResponse(LOGIN, 303) if path == "/" else PlainTextResponse(_AGAIN, 401)
        request.scope[RIGHTS], request.scope[SECRET] = rights, secret
        return None

    async def _log_in(self, request: Request) -> Response:
        try:
            form = parse_qs((await self._bodies.body(request)).decode("ascii", "replace"))
        except BodyRefused as refused:
            return self._form(str(refused), refused.status)
        except ClientDisconnect:
            return PlainTextResponse("the browser went away\n", 400)
        token = "".join(form.get("token", [])).strip()
        if not token:
            return self._form("give a token", 400)
        try:
            secret = await self._viewers.admit(token)
        except NotAdmitted as error:
            return self._form(str(error), error.status)
        except KubeError:
            return self._form("the cluster does not answer; try again", 503)
        answer = RedirectResponse("/", 303)
        cookie = own_cookie(SESSION_COOKIE, request.scope["headers"])
        answer.set_cookie(cookie, secret, httponly=True, secure=True, samesite="lax", path="/")
        return answer

    def _form(self, problem: str = "", status: int = 200) -> Response:
        said = f'<p class="bad-box" role="alert">{html.escape(problem)}</p>' if problem else ""
        return Response(self._page.replace("<!-- problem -->", said), status, media_type="text/html; charset=utf-8")


def _from_here(request: Request) -> bool:
    """Return whether a page of this host asks: browsers name the origin of each request that is more than reading."""
    headers: Iterable[tuple[bytes, bytes]] = request.scope["headers"]
    hosts, origins = values(headers, b"host"), values(headers, b"origin")
    return len(hosts) == 1 and origins == [f"https://{hosts[0]}"]
