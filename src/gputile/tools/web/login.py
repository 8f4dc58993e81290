"""Lets viewers into a page that serves in the cluster: each shows a token once and keeps a secret.

The secret is in a cookie that scripts cannot read and other sites' requests do not carry. It is worth nothing beside
this page, which the token would be.
"""

import html
from typing import Final
from urllib.parse import parse_qs

from aiohttp import web

from gputile.kube.errors import KubeError
from gputile.support.http_server import BodyReader, BodyRefused, Handler
from gputile.tools.web.assets import assets
from gputile.tools.web.guard import CONTENT_POLICY, HEADERS, answer_bound, cookies, own_cookie
from gputile.tools.web.viewers import NotAdmitted, Rights, Viewers

SESSION_COOKIE: Final = "__Host-gputile"
RIGHTS, SECRET = web.RequestKey("rights", Rights), web.RequestKey("secret", str)
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

    def __init__(self, app: Handler, viewers: Viewers) -> None:
        self._app = app
        self._viewers = viewers
        self._bodies = BodyReader(LARGEST_TOKEN)
        self._page = assets()["login.html"].body.decode()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request, or refuse it."""
        return await answer_bound(request, await self._answer(request), self._app, _HEADERS)

    async def _answer(self, request: web.BaseRequest) -> web.Response | None:
        """Return the answer of the login, None where the page answers."""
        path, reads = request.path, request.method in ("GET", "HEAD")
        host = request.headers.get("Host", "")
        # Browsers name the origin of each request that is more than reading.
        if not reads and request.headers.getall("Origin", []) != [f"https://{host}"]:
            return web.Response(status=403, text="a request that is more than reading comes from this page\n")
        if path.startswith("/static/"):
            return None
        if path == LOGIN:
            return self._form() if reads else await self._log_in(request, own_cookie(SESSION_COOKIE, host))
        secret, rights = "", None
        for secret in cookies(request, own_cookie(SESSION_COOKIE, host)):
            rights = await self._viewers.rights(secret)
            if rights is not None:
                break
        if path == LOGOUT and not reads:
            self._viewers.end(secret)
            return _see(LOGIN)
        if rights is None:
            return _see(LOGIN) if path == "/" else web.Response(status=401, text=_AGAIN)
        request[RIGHTS], request[SECRET] = rights, secret
        return None

    async def _log_in(self, request: web.BaseRequest, cookie: str) -> web.Response:
        try:
            form = parse_qs((await self._bodies.body(request)).decode("ascii", "replace"))
        except BodyRefused as refused:
            return self._form(str(refused), refused.status)
        token = "".join(form.get("token", [])).strip()
        if not token:
            return self._form("give a token", 400)
        try:
            secret = await self._viewers.admit(token)
        except NotAdmitted as error:
            return self._form(str(error), error.status)
        except KubeError:
            return self._form("the cluster does not answer; try again", 503)
        answer = _see("/")
        answer.set_cookie(cookie, secret, httponly=True, secure=True, samesite="lax", path="/")
        return answer

    def _form(self, problem: str = "", status: int = 200) -> web.Response:
        said = f'<p class="bad-box" role="alert">{html.escape(problem)}</p>' if problem else ""
        text = self._page.replace("<!-- problem -->", said)
        return web.Response(status=status, text=text, content_type="text/html")


def _see(path: str) -> web.Response:
    return web.Response(status=303, headers={"Location": path})
