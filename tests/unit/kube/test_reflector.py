"""Lists and watches: pages, expired versions, connections that break, objects that cannot be read."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import Pod
from gputile.kube.client import Backoff, Connection
from gputile.kube.objects import Deleted, Replaced, UnreadableObject
from gputile.kube.reflector import LineSplitter, Reflector, ReflectorSettings
from tests.conftest import HANGS_S
from tests.fakes.apiserver import QUICK, FakeApiServer, until
from tests.unit.kube.views import PODS, View, pod, unreadable_pod


class World:
    def __init__(self, server: FakeApiServer, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.view = View()

    @asynccontextmanager
    async def reflecting(self, **settings: Any) -> AsyncIterator[Reflector[Pod]]:
        on_event, on_list = settings.pop("on_event", self.view), settings.pop("on_list", None)
        chosen = ReflectorSettings(**{"backoff": QUICK, **settings})
        reflector = Reflector(self.connection, PODS, Pod, on_event, on_list=on_list, settings=chosen)
        task = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(HANGS_S):
                await until(lambda: reflector.synced)
                yield reflector
        finally:
            task.cancel()
            await asyncio.wait([task])


@asynccontextmanager
async def in_world(pods: int = 3) -> AsyncIterator[World]:
    server = FakeApiServer()
    server.store[PODS] = {}
    for i in range(pods):
        server.put(PODS, pod(f"p{i}"))
    async with server.connected() as connection:
        yield World(server, connection)


@pytest.mark.anyio
async def test_pages_are_one_list_and_the_watch_goes_on_from_its_version() -> None:
    async with in_world(pods=5) as world:
        world.server.fault("watch", "end", after=3)
        async with world.reflecting(page_size=2, query={"fieldSelector": "spec.nodeName=n"}) as reflector:
            (event,) = world.view.events
            assert isinstance(event, Replaced)
            assert len(event.objects) == 5
            await until(lambda: world.server.count("watch") == 1)
            watch = world.server.requests[-1].query
            assert watch["resourceVersion"] == str(world.server.version)
            assert watch["allowWatchBookmarks"] == "true"
            assert 290 <= int(watch["timeoutSeconds"]) <= 590
            assert all(r.query["fieldSelector"] == "spec.nodeName=n" for r in world.server.requests)
            world.server.put(PODS, pod("new"))
            world.server.delete(PODS, "p0")
            await until(lambda: len(world.view.events) == 3)
            assert "new" in world.view.versions
            assert "p0" not in world.view.versions
            world.server.bookmark(PODS)
            await until(lambda: world.server.count("watch") == 2)
            assert world.server.requests[-1].query["resourceVersion"] == str(world.server.version), "the bookmark's"
            assert len(world.view.events) == 3, "a bookmark is no event"
            assert reflector.counts.lists == 1


@pytest.mark.anyio
async def test_one_bad_object_does_not_stop_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gputile.kube.reflector"):
        async with in_world() as world:
            world.server.put(PODS, unreadable_pod("bad"))
            async with world.reflecting() as reflector:
                assert len(world.view.versions) == 3
                assert world.view.unreadable == {"bad"}
                event = world.view.events[0]
                assert isinstance(event, Replaced)
                assert event.unreadable[0] == UnreadableObject(
                    "ns", "bad", "uid-bad", "spec.containers: must be a list, is a whole number"
                )
                await reflector.relist()
                world.server.put(PODS, unreadable_pod("p0"))
                world.server.put(PODS, pod("after"))
                await until(lambda: "after" in world.view.versions)
                assert world.view.unreadable == {"bad", "p0"}
                world.server.delete(PODS, "bad")
                await until(lambda: world.view.unreadable == {"p0"})
                deleted = world.view.events[-1]
                assert isinstance(deleted, Deleted)
                assert deleted.object.metadata.uid == "uid-bad"
                assert reflector.counts.unreadable == 3
    assert sum("ns/bad" in record.message for record in caplog.records) == 1


@pytest.mark.anyio
async def test_relist_starts_after_the_call_and_interrupts_watch_and_pause() -> None:
    async with in_world() as world:
        async with world.reflecting() as reflector:
            await until(lambda: world.server.count("watch") == 1)
            await asyncio.gather(reflector.relist(), reflector.relist())
            assert reflector.counts.lists == 2
        world.server.fault("watch", "answer", status=503)
        async with world.reflecting(backoff=Backoff(first=600.0, longest=600.0)) as reflector:
            await until(lambda: reflector.counts.failures == 1)
            world.server.put(PODS, pod("a"))
            await reflector.relist()
            assert "a" in world.view.versions


@pytest.mark.anyio
async def test_whoever_waits_for_a_relist_learns_that_the_reflector_stopped() -> None:
    async with in_world() as world:
        async with world.reflecting() as reflector:
            world.server.fault("get", "hang")
            waiting = asyncio.create_task(reflector.relist())
            await until(lambda: not world.server.faults)
        with pytest.raises(RuntimeError, match="stopped"):
            await waiting


@pytest.mark.anyio
async def test_it_says_why_it_does_not_go_on_and_that_it_goes_on_again() -> None:
    async with in_world() as world, world.reflecting() as reflector:
        await until(lambda: world.server.count("watch") == 1)
        assert reflector.last_error is None
        world.server.refused[PODS] = (403, "Forbidden")
        world.server.break_connections()
        await until(lambda: "403 Forbidden" in str(reflector.last_error))
        world.server.refused.clear()
        await until(lambda: reflector.last_error is None)


@given(st.lists(st.binary(max_size=6).map(lambda data: data.replace(b"a", b"\n"))))
def test_lines_do_not_depend_on_the_chunks(chunks: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    whole, _, _ = b"".join(chunks).rpartition(b"\n")
    assert lines == [line for line in whole.split(b"\n") if line]
