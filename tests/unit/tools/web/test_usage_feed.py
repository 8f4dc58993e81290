"""Agents are asked for the nodes that are looked at, again and again; each reason why their answer is not known."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gputile.kube.client import Attempts, Connection
from gputile.tools.web import agent_usage, usage
from gputile.tools.web.agent_usage import UsageReader, UsageUnknown
from gputile.tools.web.records import NodeUsage, PodUsage, PodUsageAnswer
from gputile.tools.web.usage import UsageFeed
from tests.fakes.agents import PODS, agent_pod, metrics_path, metrics_text, put_agent
from tests.fakes.apiserver import FakeApiServer, until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7")]

MIB = 1 << 20


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    monkeypatch.setattr(usage, "EVERY_S", 0.02)
    monkeypatch.setattr(usage, "_POLL_EVERY_S", 0.02)
    fake = FakeApiServer()
    fake.store[PODS] = {}
    async with fake.running():
        yield fake


@pytest.fixture
def made() -> dict[str, dict[str, int]]:
    """When the pods of a node were created, as the page knows it; a test changes it."""
    return {}


@pytest.fixture
async def feed(server: FakeApiServer, made: dict[str, dict[str, int]]) -> AsyncIterator[UsageFeed]:
    async with Connection(server.access(), attempts=Attempts(number=1)) as connection:
        found = UsageFeed(UsageReader(connection, "gputile"), lambda node: made.get(node, {}))
        running = asyncio.create_task(found.run())
        yield found
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def asked(server: FakeApiServer, node: str) -> int:
    return [request.path for request in server.requests].count(metrics_path(node))


async def test_only_what_is_looked_at_is_read(server: FakeApiServer, feed: UsageFeed) -> None:
    for node in ("a", "b"):
        put_agent(server, node, metrics_text({"ns/p": 3 * MIB}))
    assert feed.of_nodes(["a"]).nodes == {}
    await until(lambda: feed.of_nodes(["a"]).nodes == {"a": NodeUsage({"ns/p": PodUsage(3, None, {0: 3})}, {0: 4})})
    await until(lambda: asked(server, "a") > 3)
    assert asked(server, "b") == 0


async def test_a_node_that_nobody_looks_at_any_more_is_read_no_longer(
    server: FakeApiServer, feed: UsageFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_POLL_AFTER_VIEW_S", 0.05)
    put_agent(server, "a", metrics_text({"ns/p": MIB}))
    await until(lambda: bool(feed.of_nodes(["a"]).nodes))
    await asyncio.sleep(0.3)
    before = asked(server, "a")
    await asyncio.sleep(0.3)
    assert asked(server, "a") == before
    assert feed.of_nodes(["a"]).nodes == {}, "what it used then is not what it uses now"


async def test_a_pods_line_grows_and_ends_with_it(server: FakeApiServer, feed: UsageFeed) -> None:
    put_agent(server, "a", metrics_text({"ns/p": MIB}, {"ns/p": 5}))
    assert feed.of_pod("a", "ns/p").samples == []
    await until(lambda: len(feed.of_pod("a", "ns/p").samples) > 3)
    answer = feed.of_pod("a", "ns/p")
    assert answer.usage == PodUsage(1, 0, {0: 1})
    assert [(sample.mib, sample.percent) for sample in answer.samples][:2] == [(1, None), (1, 0)]
    put_agent(server, "a", metrics_text({}))
    await until(lambda: feed.of_pod("a", "ns/p").samples == [])
    assert feed.of_pod("a", "ns/p").usage is None
    assert "does not measure this pod" in feed.of_pod("a", "ns/p").trouble


async def test_a_pod_made_anew_under_its_name_has_a_line_of_its_own(
    server: FakeApiServer, feed: UsageFeed, made: dict[str, dict[str, int]]
) -> None:
    made["a"] = {"ns/p": 100}
    put_agent(server, "a", metrics_text({"ns/p": 9 * MIB}, {"ns/p": 5}))
    await until(lambda: len(feed.of_pod("a", "ns/p").samples) > 2)
    made["a"] = {"ns/p": 101}
    put_agent(server, "a", metrics_text({"ns/p": MIB}, {"ns/p": 7}))
    assert feed.of_pod("a", "ns/p") == PodUsageAnswer(), "it is not measured yet"
    assert feed.of_nodes(["a"]).nodes["a"].pods == {}
    await until(lambda: len(feed.of_pod("a", "ns/p").samples) > 1)
    samples = feed.of_pod("a", "ns/p").samples
    assert [(each.mib, each.percent) for each in samples[:2]] == [(1, None), (1, 0)]


async def test_nodes_and_pods_are_bounded(
    server: FakeApiServer, feed: UsageFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MOST_NODES", 1)
    monkeypatch.setattr(usage, "MOST_PODS", 2)
    put_agent(server, "a", metrics_text({f"ns/{number}": MIB for number in range(5)}))
    put_agent(server, "b", metrics_text({}))
    await until(lambda: len(feed.of_pod("a", "ns/4").samples) > 2)
    assert [len(feed.of_pod("a", f"ns/{number}").samples) > 2 for number in (4, 3)] == [True, False]
    await until(lambda: "b" in feed.of_nodes(["b"]).nodes)
    assert feed.of_nodes(["a"]).nodes == {}, "it gave way to what was looked at later"


async def test_who_may_not_ask_is_told_once_and_the_api_server_is_left_alone(
    server: FakeApiServer, feed: UsageFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_agent(server, "a", b"")
    del server.proxied[metrics_path("a")]
    server.refused[metrics_path("a")] = (403, "Forbidden")
    await until(lambda: "you may not read the agents" in feed.of_nodes(["a"]).trouble)
    assert "you may not read the agents" in feed.of_pod("a", "ns/p").trouble
    before = asked(server, "a")
    await asyncio.sleep(0.3)
    assert asked(server, "a") == before
    del server.refused[metrics_path("a")]
    put_agent(server, "a", metrics_text({"ns/p": MIB}))
    monkeypatch.setattr(feed, "_retry_s", 0.0)
    await until(lambda: not feed.of_nodes(["a"]).trouble)


async def test_one_silent_agent_is_its_nodes_problem_and_all_of_them_everybodys(
    server: FakeApiServer, feed: UsageFeed
) -> None:
    put_agent(server, "a", b"connection refused", 503)
    put_agent(server, "b", metrics_text({}))
    problem = "the agent cannot be read: connection refused"
    await until(lambda: feed.of_nodes(["a"]).trouble == problem)
    await until(lambda: "b" in feed.of_nodes(["b"]).nodes)
    answer = feed.of_nodes(["a", "b"])
    assert answer.trouble == ""
    assert answer.nodes["a"].problem == problem


@pytest.fixture
async def reader(server: FakeApiServer) -> AsyncIterator[UsageReader]:
    async with Connection(server.access(), attempts=Attempts(number=1)) as connection:
        yield UsageReader(connection, "gputile")


async def why(reader: UsageReader, node: str) -> tuple[str, bool]:
    with pytest.raises(UsageUnknown) as unknown:
        await reader.read(node)
    return str(unknown.value), unknown.value.refused


async def test_each_agent_is_asked_and_the_list_of_them_is_read_once(
    server: FakeApiServer, reader: UsageReader
) -> None:
    for number, node in enumerate(("a", "b")):
        put_agent(server, node, metrics_text({"ns/p": number}))
    found = await asyncio.gather(*(reader.read(node) for node in ("a", "b", "a")))
    assert [reading.pod_bytes["ns/p"][0] for reading in found] == [0, 1, 0]
    assert [request.path for request in server.requests].count(PODS) == 1
    assert server.requests[0].query["labelSelector"].endswith("component=agent")


async def test_who_may_not_list_the_agents_is_told_so(server: FakeApiServer, reader: UsageReader) -> None:
    server.refused[PODS] = (403, "Forbidden")
    text, refused = await why(reader, "a")
    assert refused
    assert text.startswith("the agents cannot be listed: ")
    assert await why(reader, "b") == (text, True)


async def test_an_agent_that_is_not_ready_and_a_release_that_is_elsewhere(
    server: FakeApiServer, reader: UsageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_usage, "_RELIST_S", 0.0)
    assert await why(reader, "a") == ("no agent is ready in namespace gputile", False)
    server.put(PODS, agent_pod("a"))
    server.put(PODS, agent_pod("b", ready=False))
    assert await why(reader, "b") == ("no agent is ready on this node, in namespace gputile", False)


async def test_an_agent_that_does_not_answer_or_says_nonsense(
    server: FakeApiServer, reader: UsageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_agent(server, "a", b"gputile_agent_gpu_memory_used_bytes{")
    assert "is not an agent's metrics" in (await why(reader, "a"))[0]
    put_agent(server, "a", metrics_text({"ns/p": 1}))
    monkeypatch.setattr(agent_usage, "_MOST_S", 0.2)
    server.fault("get", "hang")
    assert await why(reader, "a") == ("the agent did not answer within 0.2 s", False)


async def test_an_agent_whose_pod_is_another_now_is_found_again(
    server: FakeApiServer, reader: UsageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_agent(server, "a", metrics_text({"ns/p": 1}))
    await reader.read("a")
    server.delete(PODS, "agent-a")
    del server.proxied[metrics_path("a")]
    await why(reader, "a")
    new = agent_pod("a")
    new["metadata"]["name"] = "new"
    server.put(PODS, new)
    server.proxied[metrics_path("a").replace("agent-a", "new")] = 200, metrics_text({"ns/p": 2})
    monkeypatch.setattr(agent_usage, "_RELIST_S", 0.0)
    assert (await reader.read("a")).pod_bytes == {"ns/p": {0: 2}}
