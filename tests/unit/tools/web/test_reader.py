"""Agents that are asked through the API server, and each reason why what is used is not known."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gputile.kube.client import Attempts, Connection
from gputile.tools.web import usage as usage_reader
from gputile.tools.web.records import UsageSample
from gputile.tools.web.usage import UsageReader, UsageUnknown
from tests.fakes.agents import PODS, agent_pod, hour_path, metrics_path, metrics_text, put_agent
from tests.fakes.apiserver import FakeApiServer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7")]


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    fake = FakeApiServer()
    fake.store[PODS] = {}
    async with fake.running():
        yield fake


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


async def test_a_release_elsewhere_and_an_agent_that_is_not_ready(server: FakeApiServer, reader: UsageReader) -> None:
    assert await why(reader, "a") == ("no agent is ready in namespace gputile; --installed-in names another", False)


async def test_an_agent_that_is_not_ready(server: FakeApiServer, reader: UsageReader) -> None:
    server.put(PODS, agent_pod("a"))
    server.put(PODS, agent_pod("b", ready=False))
    assert await why(reader, "b") == ("no agent is ready on this node, in namespace gputile", False)


async def test_an_agent_that_does_not_answer_or_says_nonsense(
    server: FakeApiServer, reader: UsageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_agent(server, "a", b"error trying to reach service: connection refused", 503)
    assert await why(reader, "a") == (
        "the agent cannot be asked: error trying to reach service: connection refused",
        False,
    )
    put_agent(server, "a", b"gputile_agent_gpu_memory_used_bytes{")
    assert "no metrics of an agent" in (await why(reader, "a"))[0]
    put_agent(server, "a", metrics_text({"ns/p": 1}))
    monkeypatch.setattr(usage_reader, "_MOST_S", 0.2)
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
    monkeypatch.setattr(usage_reader, "_LIST_AGAIN_S", 0.0)
    assert (await reader.read("a")).pod_bytes == {"ns/p": {0: 2}}


async def test_what_containers_have_used_is_added_up_by_moment(server: FakeApiServer, reader: UsageReader) -> None:
    put_agent(server, "a", b"")
    lines = (
        b'{"container":"c","gpu":0,"samples":[[60,1,null],[120,2,7]]},{"container":"d","gpu":0,"samples":[[120,3,1]]}'
    )
    server.proxied[hour_path("a")] = 200, b'{"lines":[%s]}' % lines
    assert await reader.hour("a", "uid") == [UsageSample(60, 1, None), UsageSample(120, 5, 8)]
    assert server.requests[-1].query == {"pod": "uid"}
