"""The page in the cluster, over TLS: nothing without a token, and no name that a viewer may not list."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest

from gputile.tools.web import viewers
from gputile.tools.web.guard import SESSION_COOKIE
from tests.fakes.agents import metrics_text, put_agent
from tests.fakes.corebuilders import bound
from tests.fakes.reviews import TOKEN_REVIEWS
from tests.unit.tools.web.cluster_pages import HANG_S, ClusterPage, served_in_cluster
from tests.unit.tools.web.pages import put

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7", "B2")]


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[ClusterPage]:
    async with served_in_cluster(tmp_path) as found:
        yield found


async def test_nothing_is_told_without_a_session(page: ClusterPage) -> None:
    async with page.client() as stranger:
        answer = await stranger.get("/")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        name = f"{SESSION_COOKIE}-{httpx.URL(page.base).port}"
        for path in ("/api/state", "/api/changes", "/api/pod?namespace=mine&name=open", "/api/usage?node=a", "/x"):
            answer = await stranger.get(path, headers={"Cookie": f"{name}=guessed; gputile=guessed"})
            assert (answer.status_code, "log" in answer.text) == (401, True), path
        assert (await stranger.post("/api/what-if", content=b"")).status_code == 401
        assert "<form" in (await stranger.get("/login")).text
        assert (await stranger.get("/static/page.css")).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"token=", 400),
        (b"token=<script>", 401),
        (b"token=token-stranger", 401),
        (b"\xff\x00&token", 400),
        (b"token=" + b"x" * 70_000, 413),
    ],
)
async def test_what_is_no_token_is_refused_with_a_form_again(page: ClusterPage, body: bytes, status: int) -> None:
    async with page.client() as stranger:
        answer = await stranger.post("/login", content=body)
        assert answer.status_code == status
        assert 'role="alert"' in answer.text
        assert "<script" not in answer.text
        assert "set-cookie" not in answer.headers


async def test_the_session_is_a_cookie_for_this_page_alone(page: ClusterPage) -> None:
    async with page.client() as browser:
        answer = await browser.post("/login", data={"token": " token-admin\n"})
        cookie = answer.headers["set-cookie"]
        name, _, secret = cookie.partition(";")[0].partition("=")
        assert name == f"{SESSION_COOKIE}-{httpx.URL(page.base).port}", "pages on other ports have their own"
        assert "token-admin" not in cookie
        assert all(part in cookie for part in ("HttpOnly", "Secure", "SameSite=lax", "Path=/"))
        assert "form-action 'self'" in answer.headers["content-security-policy"]
        assert (await browser.get("/api/state")).json()["login"] is True
        assert (await browser.post("/logout")).status_code == 303
        browser.cookies.set(name, secret)
        assert (await browser.get("/api/state")).status_code == 401


@pytest.mark.parametrize("origin", ["https://elsewhere.example", "null", ""])
async def test_other_sites_can_neither_log_in_nor_ask(page: ClusterPage, origin: str) -> None:
    async with page.client("admin") as browser:
        for path in ("/login", "/logout", "/api/what-if"):
            answer = await browser.post(path, data={"token": "token-admin"}, headers={"Origin": origin})
            assert answer.status_code == 403, path
        assert (await browser.get("/api/state")).status_code == 200


async def test_who_may_list_one_namespace_sees_its_names_alone(page: ClusterPage) -> None:
    put_agent(page.cluster, "a", metrics_text({"mine/open": 1 << 30, "theirs/secret": 2 << 30}))
    async with page.client("team") as browser:
        state = await browser.get("/api/state")
        assert state.json()["partial"] is True
        assert [(each["name"], each["shares"]) for each in state.json()["nodes"][0]["pods"]] == [
            ("open", [[0, 4096, 0]]),
            ("(hidden)", [[1, 6144, 0]]),
        ]
        async with asyncio.timeout(HANG_S):
            while True:
                usage = await browser.get("/api/usage", params={"node": "a"})
                if "a" in usage.json().get("nodes", {}):
                    break
                await asyncio.sleep(0.02)
        assert set(usage.json()["nodes"]["a"]["pods"]) == {"mine/open"}
        waits = await browser.get("/api/pod", params={"namespace": "mine", "name": "open-waits"})
        assert waits.json()["explanation"]["nodes"] == []
        assert waits.json()["eventsUnknown"] == "you may not list the Events of this namespace"
        said = [state.text, usage.text, waits.text]
        for path in ("/api/pod", "/api/pod-usage"):
            hidden = await browser.get(path, params={"namespace": "theirs", "name": "secret"})
            none = await browser.get(path, params={"namespace": "theirs", "name": "nobody"})
            assert (hidden.status_code, hidden.text) == (404, none.text), "whether it exists is not told either"
        assert not [text for text in said if "secret" in text or "theirs" in text]
        assert (await browser.post("/api/what-if", content=b"x")).status_code == 403


async def test_changes_have_no_names_either_and_a_lost_right_ends_them(
    page: ClusterPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with page.client("team") as browser:
        state = (await browser.get("/api/state")).json()
        query = {"epoch": state["epoch"], "after": str(state["revision"])}
        text = ""
        async with asyncio.timeout(HANG_S), browser.stream("GET", "/api/changes", params=query) as stream:
            put(page.cluster, bound("secret-new", "a", 1, 2, "theirs"), bound("open-new", "a", 0, 2, "mine"))
            lines = stream.aiter_lines()
            while "open-new" not in text:
                text += await anext(lines)
            monkeypatch.setattr(viewers, "RECHECK_S", 0.0)
            page.users.rights["team"] = {("nodes", "")}
            put(page.cluster, bound("open-newer", "a", 0, 1, "mine"))
            while "event: reload" not in text:
                text += await anext(lines)
        assert "secret" not in text
        assert "theirs" not in text
        assert "open-newer" not in text
        assert "(hidden)" in text


async def test_changes_do_not_go_on_from_a_state_of_other_rights(
    page: ClusterPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the API server is away names go, and when it is back they come again."""
    async with page.client("team") as browser:
        states = [(await browser.get("/api/state")).json()]
        monkeypatch.setattr(viewers, "RECHECK_S", 0.0)
        page.users.rights["team"] = {("nodes", "")}
        states.append((await browser.get("/api/state")).json())
        assert [[pod["name"] for pod in state["nodes"][0]["pods"]] for state in states] == [
            ["open", "(hidden)"],
            ["(hidden)", "(hidden)"],
        ]
        seen = []
        for state in states:
            query = {"epoch": state["epoch"], "after": str(state["revision"])}
            async with asyncio.timeout(HANG_S), browser.stream("GET", "/api/changes", params=query) as stream:
                seen.append(await anext(stream.aiter_lines()))
        assert seen == ["event: reload", "event: beat"]


async def test_who_may_list_all_pods_sees_all_and_asks_all(page: ClusterPage) -> None:
    async with page.client("admin") as browser:
        names = [each["name"] for each in (await browser.get("/api/state")).json()["nodes"][0]["pods"]]
        assert names == ["open", "secret"]
        waits = await browser.get("/api/pod", params={"namespace": "theirs", "name": "secret-waits"})
        assert waits.json()["explanation"]["nodes"]
        assert (await browser.post("/api/what-if", content=b"x")).status_code == 200


async def test_a_cluster_that_does_not_answer_admits_nobody(page: ClusterPage) -> None:
    page.cluster.refused[TOKEN_REVIEWS] = (503, "ServiceUnavailable")
    async with page.client() as browser:
        answer = await browser.post("/login", data={"token": "token-admin"})
        assert answer.status_code == 503
        assert "the cluster does not answer" in answer.text
