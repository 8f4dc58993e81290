"""Viewers are who the API server says they are, and may see what it says, for as long as it says so."""

from collections.abc import AsyncIterator

import pytest

from gputile.kube.connection import Connection
from gputile.kube.errors import KubeError
from gputile.tools.web import viewers as module
from gputile.tools.web.viewers import ALL_RIGHTS, NotAdmitted, Rights, Viewers
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.reviews import ACCESS_REVIEWS, TOKEN_REVIEWS, Users

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7", "B2")]

NODES = ("nodes", "")


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    fake = FakeApiServer()
    async with fake.running():
        yield fake


@pytest.fixture
def users(server: FakeApiServer) -> Users:
    found = Users(server)
    found.rights = {
        "admin": {NODES, ("pods", "")},
        "team": {NODES, ("pods", "a"), ("events", "a")},
        "nobody": {("pods", "a")},
    }
    return found


@pytest.fixture
async def viewers(server: FakeApiServer) -> AsyncIterator[Viewers]:
    async with Connection(server.access()) as connection:
        yield Viewers(connection, lambda: {"a", "b"})


async def test_each_sees_what_it_may_list(users: Users, viewers: Viewers) -> None:
    admin, team = await viewers.admit("token-admin"), await viewers.admit("token-team")
    assert admin != team
    assert await viewers.rights(admin) == ALL_RIGHTS
    rights = await viewers.rights(team)
    assert rights == Rights(namespaces=frozenset({"a"}))
    assert [rights.sees(name) for name in ("a", "b", "")] == [True, False, False]
    assert await viewers.may_list(team, "events", "a")
    assert not await viewers.may_list(team, "events", "b")
    assert not await viewers.may_list("no session", "events", "a")


@pytest.mark.parametrize(("token", "status"), [("token-stranger", 401), ("admin", 401), ("token-nobody", 403)])
async def test_strangers_and_who_may_list_no_nodes_stay_outside(
    users: Users, viewers: Viewers, token: str, status: int
) -> None:
    with pytest.raises(NotAdmitted) as refused:
        await viewers.admit(token)
    assert refused.value.status == status
    assert token not in str(refused.value).split()
    assert await viewers.rights(token) is None


async def test_a_right_that_is_taken_away_is_lost(
    users: Users, viewers: Viewers, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, team = await viewers.admit("token-admin"), await viewers.admit("token-team")
    users.rights["admin"] = {NODES}
    del users.rights["team"]
    assert await viewers.rights(admin) == ALL_RIGHTS, "within a minute"
    monkeypatch.setattr(module, "RECHECK_S", 0.0)
    assert await viewers.rights(admin) == Rights()
    assert await viewers.rights(team) is None
    users.rights["team"] = {NODES}
    assert await viewers.rights(team) is None, "the session is over"


async def test_while_the_api_server_is_away_rights_last_for_a_while(
    users: Users, server: FakeApiServer, viewers: Viewers, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = await viewers.admit("token-admin")
    monkeypatch.setattr(module, "RECHECK_S", 0.0)
    server.refused = dict.fromkeys((TOKEN_REVIEWS, ACCESS_REVIEWS), (503, "ServiceUnavailable"))
    assert await viewers.rights(secret) == ALL_RIGHTS
    with pytest.raises(KubeError):
        await viewers.admit("token-admin")
    monkeypatch.setattr(module, "STALE_S", 0.0)
    assert await viewers.rights(secret) is None


async def test_sessions_end_and_are_bounded(users: Users, viewers: Viewers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SESSIONS", 2)
    secrets = [await viewers.admit("token-admin") for _ in range(3)]
    assert [await viewers.rights(each) is not None for each in secrets] == [False, True, True]
    viewers.end(secrets[1])
    assert await viewers.rights(secrets[1]) is None
    monkeypatch.setattr(module, "SESSION_S", 0.0)
    short = await viewers.admit("token-admin")
    assert await viewers.rights(short) is None


async def test_of_very_many_namespaces_the_names_of_some_are_asked(
    users: Users, viewers: Viewers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_NAMESPACES", 1)
    users.rights["team"] = {NODES, ("pods", "a"), ("pods", "b")}
    assert await viewers.rights(await viewers.admit("token-team")) == Rights(namespaces=frozenset({"a"}))
