"""Viewers are who the API server says they are, and may see what it says, for as long as it says so."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from gputile.kube.client import Connection
from gputile.kube.errors import KubeError
from gputile.tools.web import viewers as module
from gputile.tools.web.records import (
    Difference,
    GpuTile,
    NodeTile,
    NodeUsage,
    PendingPod,
    PodTile,
    PodUsage,
    PodUsageAnswer,
    TileShare,
    UsageAnswer,
)
from gputile.tools.web.viewers import (
    ALL_RIGHTS,
    NO_NAMES,
    NotAdmitted,
    Rights,
    Viewers,
    visible_difference,
    visible_pod_usage,
    visible_usage,
)
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.fakes.reviews import ACCESS_REVIEWS, TOKEN_REVIEWS, Users

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7", "B2")]


HANG_S = 60.0
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
        found = Viewers(connection, lambda: {"a", "b"})
        yield found
        await found.close()


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


async def test_while_the_api_server_is_away_rights_last_for_a_while_and_sessions_longer(
    users: Users, server: FakeApiServer, viewers: Viewers, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = await viewers.admit("token-admin")
    monkeypatch.setattr(module, "RECHECK_S", 0.0)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    server.refused = dict.fromkeys((TOKEN_REVIEWS, ACCESS_REVIEWS), (503, "ServiceUnavailable"))
    assert await viewers.rights(secret) == ALL_RIGHTS
    with pytest.raises(KubeError):
        await viewers.admit("token-admin")
    monkeypatch.setattr(module, "STALE_S", 0.0)
    assert await viewers.rights(secret) == NO_NAMES, "who may see which is not known any more"
    monkeypatch.setattr(module, "STALE_S", 300.0)
    users.rights["admin"] = {NODES, ("pods", "a")}
    server.refused = {}
    await until(viewers, secret, Rights(namespaces=frozenset({"a"})))
    server.refused = dict.fromkeys((TOKEN_REVIEWS, ACCESS_REVIEWS), (503, "ServiceUnavailable"))
    assert await viewers.rights(secret) == Rights(namespaces=frozenset({"a"}))
    server.refused = {}
    del users.rights["admin"]
    await until(viewers, secret, None)


async def until(viewers: Viewers, secret: str, rights: Rights | None) -> None:
    """Wait until a viewer has these rights: while the API server is away, requests do not wait for it."""
    async with asyncio.timeout(HANG_S):
        while True:
            if await viewers.rights(secret) == rights:
                return
            await asyncio.sleep(0.01)


async def test_requests_do_not_wait_for_an_api_server_that_hangs(
    users: Users, server: FakeApiServer, viewers: Viewers, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = [await viewers.admit("token-admin") for _ in range(20)]
    monkeypatch.setattr(module, "RECHECK_S", 0.0)
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    server.faults = [Fault("post", "hang") for _ in range(100)]
    before = len(server.requests)
    async with asyncio.timeout(8.0):  # a request to the API server ends after 10 s
        for _ in range(3):
            assert await asyncio.gather(*map(viewers.rights, secrets)) == [ALL_RIGHTS] * len(secrets)
        monkeypatch.setattr(module, "STALE_S", 0.0)
        assert await viewers.rights(secrets[0]) == NO_NAMES
    assert len(server.requests) - before <= len(secrets), "each is asked about once"


async def test_sessions_end_and_are_bounded(users: Users, viewers: Viewers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SESSIONS", 2)
    secrets = [await viewers.admit("token-admin") for _ in range(3)]
    assert [await viewers.rights(each) is not None for each in secrets] == [False, True, True]
    viewers.end(secrets[1])
    assert await viewers.rights(secrets[1]) is None
    monkeypatch.setattr(module, "SESSION_S", 0.0)
    short = await viewers.admit("token-admin")
    assert await viewers.rights(short) is None


async def test_who_logs_in_most_ends_nobody_elses_session(
    users: Users, viewers: Viewers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SESSIONS", 4)
    admin = await viewers.admit("token-admin")
    secrets = [await viewers.admit("token-team") for _ in range(6)]
    assert await viewers.rights(admin) == ALL_RIGHTS
    assert [await viewers.rights(each) is not None for each in secrets] == [False] * 3 + [True] * 3


TEAM = Rights(namespaces=frozenset({"mine"}))
SECRET = PodTile("theirs", "secret", (TileShare(0, 1024, 30),), "secret-work", created=5, problem="secret is lost")
OPEN = PodTile("mine", "open", (TileShare(0, 2048),), "work", created=7)
NODE = NodeTile(
    "n", "cgpu", gpus=(GpuTile(0, 8192, booked=3072),), pods=(SECRET, OPEN), problems=("theirs/secret waits",)
)
PENDING = [PendingPod("theirs", "secret", "1 GiB"), PendingPod("mine", "open", "1 GiB")]


def test_nothing_that_is_sent_has_a_name_of_others() -> None:
    keys = {f"{each.namespace}/{each.name}": each for each in PENDING}
    found = visible_difference(Difference({"n": NODE}, ("gone",), keys, ("theirs/secret-gone", "mine/gone")), TEAM)
    usage = UsageAnswer(nodes={"n": NodeUsage({"theirs/secret": PodUsage(1), "mine/open": PodUsage(2)}, {0: 3})})
    sent = msgspec.json.encode([found, visible_usage(usage, TEAM)])
    assert b"secret" not in sent
    assert b"theirs" not in sent
    assert (found.nodes_gone, found.pending_gone) == (("gone",), ("mine/gone",))
    assert visible_usage(usage, TEAM).nodes["n"] == NodeUsage({"mine/open": PodUsage(2)}, {0: 3})


def test_what_a_request_said_names_the_agents_pod() -> None:
    said = "GET /api/v1/namespaces/gputile/pods/agent-x/proxy: 503"
    usage = UsageAnswer(said, {"n": NodeUsage(problem=said)})
    sent = msgspec.json.encode([visible_usage(usage, TEAM), visible_pod_usage(PodUsageAnswer(said), TEAM)])
    assert b"agent-x" not in sent
    assert sent.count(b"the use is unknown") == 3
    assert visible_usage(usage, ALL_RIGHTS) == usage
    assert visible_pod_usage(PodUsageAnswer(), TEAM) == PodUsageAnswer()
