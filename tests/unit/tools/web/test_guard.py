"""Who may ask the page's server: no other page, no other name of this machine, nobody without the secret."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2 as httpx
import pytest
from aiohttp import web

from gputile.tools.web.guard import HEADERS, Guard
from tests.fakes.http import client_of

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7", "B2")]

TOKEN = "secret-of-this-run"
COOKIE = "gputile-8420"
WITH = {"Cookie": f"{COOKIE}={TOKEN}"}


async def well(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="well")


@asynccontextmanager
async def client(host: str = "127.0.0.1:8420") -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(Guard(well, TOKEN)) as found:
        found.headers["Host"] = host
        yield found


async def test_the_secret_of_the_address_becomes_a_cookie_and_leaves_the_address() -> None:
    async with client() as page:
        answer = await page.get("/", params={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{COOKIE}={TOKEN};")
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert (await page.get("/")).text == "well"


@pytest.mark.parametrize(
    "other", ['foo={"a":1}', "user=John Smith", "a[0]=1", "path=/", "é=é", "=", "", "gputile-8420=x", 'x="', "gputile"]
)
async def test_cookies_of_other_programs_lock_nobody_out(other: str) -> None:
    """A browser sends those of all ports, and of parent domains."""
    async with client() as page:
        for text in (f"{other}; {COOKIE}={TOKEN}", f"{COOKIE}={TOKEN}; {other}", f"{other};{COOKIE} = {TOKEN} ;"):
            assert (await page.get("/", headers={b"Cookie": text.strip().encode()})).text == "well", text


async def test_two_pages_in_one_browser_do_not_log_each_other_out() -> None:
    """A cookie knows a host, and no port."""
    async with client("127.0.0.1:8420") as first, client("127.0.0.1:8421") as second, client("127.0.0.1") as third:
        kept = {}
        for page in (first, second, third):
            answer = await page.get("/", params={"token": TOKEN})
            name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
            kept[name] = value
        assert list(kept) == ["gputile-8420", "gputile-8421", "gputile"]
        kept["gputile-8421"] = "of another page"
        sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in kept.items())}
        assert [(await page.get("/", headers=sent)).status_code for page in (first, second, third)] == [200, 401, 200]


@pytest.mark.parametrize("cookie", ["", "wrong", "secret-of-this-ru", "sécret", '"', ";;=;"])
async def test_nothing_is_told_without_the_secret(cookie: str) -> None:
    async with client() as page:
        for path in ("/", "/api/state", "/api/changes", "/static/main.js", f"/api/state?token={TOKEN}"):
            answer = await page.get(path, headers={b"Cookie": f"{COOKIE}={cookie}".encode()} if cookie else {})
            assert answer.status_code == 401
            assert "open the address that gputile web has printed" in answer.text
        assert (await page.get("/", params={"token": "wrong"})).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil.example", "["]
)
async def test_a_name_that_was_bound_anew_to_this_machine_is_refused(host: str) -> None:
    async with client() as page:
        answer = await page.get("/api/state", headers={**WITH, "Host": host})
        assert answer.status_code == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8420", "http://127.0.0.1:8421"])
async def test_another_page_is_refused(origin: str) -> None:
    async with client() as page:
        for method in ("GET", "POST"):
            answer = await page.request(method, "/api/what-if", headers={**WITH, "Origin": origin})
            assert answer.status_code == 403


async def test_what_is_more_than_reading_names_its_origin() -> None:
    async with client() as page:
        assert (await page.post("/api/what-if", headers=WITH)).status_code == 403
        own = {**WITH, "Origin": "http://127.0.0.1:8420"}
        assert (await page.post("/api/what-if", headers=own)).text == "well"


async def test_every_answer_binds_the_browser() -> None:
    async with client() as page:
        for answer in (
            await page.get("/"),
            await page.get("/", headers=WITH),
            await page.get("/", headers={"Host": "x"}),
        ):
            assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
