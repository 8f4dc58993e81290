"""Events are recorded, counted up and bounded, and never hold up who records them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import ObjectReference
from gputile.kube.client import Attempts, Connection
from gputile.kube.events import EventLimits, EventRecorder, shortened
from gputile.kube.timing import Clock
from tests.fakes.apiserver import FakeApiServer, Object, until
from tests.unit.kube.views import QUICK

EVENTS = "/api/v1/namespaces/ns/events"
POD = ObjectReference(api_version="v1", kind="Pod", namespace="ns", name="p", uid="u")
NODE = ObjectReference(api_version="v1", kind="Node", name="n", uid="n-uid")
START = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


class Scene:
    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        self.time = 0.0
        self.naps: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)

    def events(self, collection: str = EVENTS) -> list[Object]:
        return list(self.server.store.get(collection, {}).values())


@asynccontextmanager
async def recording(capacity: int = 4096) -> AsyncIterator[tuple[Scene, EventRecorder]]:
    server = FakeApiServer()
    async with (
        server.running(),
        Connection(server.access(), attempts=Attempts(backoff=QUICK), within=10.0) as connection,
    ):
        scene = Scene(server)
        recorder = EventRecorder(
            connection,
            "gputile-0",
            limits=EventLimits(capacity=capacity, burst=5, backoff=QUICK),
            clock=Clock(lambda: START + timedelta(seconds=scene.time), lambda: scene.time, scene.sleep),
        )
        task = asyncio.create_task(recorder.run())
        try:
            yield scene, recorder
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.anyio
async def test_an_event_says_about_whom_what_and_when() -> None:
    async with recording() as (scene, recorder):
        recorder.record(POD, "Shared", "on GPU 3")
        recorder.record(NODE, "Sick", "GPU 1 is gone", "Warning")
        await until(lambda: len(scene.server.requests) == 2)
        (event,) = scene.events()
        assert event["involvedObject"] == {
            "apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "p", "uid": "u",
        }  # fmt: skip
        assert (event["type"], event["reason"], event["message"]) == ("Normal", "Shared", "on GPU 3")
        assert event["reportingComponent"] == event["source"]["component"] == "gputile"
        assert event["firstTimestamp"] == event["lastTimestamp"] == "2030-01-02T03:04:05Z"
        (about_node,) = scene.events("/api/v1/namespaces/default/events")
        assert about_node["type"] == "Warning"
        assert about_node["metadata"]["namespace"] == "default"


@pytest.mark.anyio
async def test_the_same_again_counts_up_for_ten_minutes() -> None:
    async with recording() as (scene, recorder):
        for _ in range(3):
            recorder.record(POD, "Shared", "on GPU 3")
        await until(lambda: scene.server.count("post") == 1 and not recorder.waiting)
        assert scene.events()[0]["count"] == 3
        scene.time = 500.0
        recorder.record(POD, "Shared", "on GPU 3")
        await until(lambda: scene.server.count("patch") == 1)
        assert scene.events()[0]["count"] == 4
        assert scene.events()[0]["lastTimestamp"] == "2030-01-02T03:12:25Z"
        await until(lambda: recorder.remembered == 1)  # the answer has come: what does not wait may be on its way
        scene.time = 1200.0
        recorder.record(POD, "Shared", "on GPU 3")
        await until(lambda: len(scene.events()) == 2)


@pytest.mark.anyio
async def test_an_event_that_the_cluster_forgot_is_made_anew() -> None:
    async with recording() as (scene, recorder):
        recorder.record(POD, "Shared", "on GPU 3")
        await until(lambda: len(scene.events()) == 1)
        scene.server.store[EVENTS].clear()
        await asyncio.sleep(0.01)
        recorder.record(POD, "Shared", "on GPU 3")
        await until(lambda: len(scene.events()) == 1)
        assert scene.events()[0]["count"] == 2


@pytest.mark.anyio
async def test_the_oldest_is_dropped_when_too_many_wait() -> None:
    async with recording(capacity=4) as (scene, recorder):
        for i in range(7):
            recorder.record(POD, "Shared", f"on GPU {i}")
        assert (recorder.waiting, recorder.dropped) == (4, 3)
        await until(lambda: len(scene.events()) == 4)
        assert [event["message"] for event in scene.events()] == [f"on GPU {i}" for i in (3, 4, 5, 6)]


@pytest.mark.anyio
async def test_events_are_sent_at_a_limited_rate() -> None:
    async with recording() as (scene, recorder):
        for i in range(25):
            recorder.record(POD, "Shared", f"on GPU {i}")
        await until(lambda: len(scene.events()) == 25)
        assert 1.99 < scene.time < 2.01


@pytest.mark.anyio
async def test_a_shedding_server_is_asked_again_and_a_refusing_one_is_not() -> None:
    async with recording() as (scene, recorder):
        scene.server.fault("post", "answer", status=429, headers={"Retry-After": "9"})
        recorder.record(POD, "Shared", "first")
        await until(lambda: len(scene.events()) == 1)
        assert 9.0 in scene.naps
        scene.server.fault("post", "answer", status=403)
        recorder.record(POD, "Shared", "refused")
        recorder.record(POD, "Shared", "second")
        await until(lambda: len(scene.events()) == 2)
        assert recorder.failed == 1


@pytest.mark.anyio
async def test_long_names_are_cut_to_what_a_name_may_be() -> None:
    async with recording() as (scene, recorder):
        long = ObjectReference(api_version="v1", kind="Pod", namespace="ns", name="p" * 235 + ".-" + "q" * 16)
        recorder.record(long, "Shared", "x")
        await until(lambda: len(scene.events()) == 1)
        name = scene.events()[0]["metadata"]["name"]
        assert len(name) <= 253
        assert name.startswith("p" * 235 + ".")
        assert scene.events()[0]["involvedObject"]["name"] == long.name


@given(st.text(st.characters(codec=None), min_size=300, max_size=1200))
def test_messages_are_valid_and_fit(message: str) -> None:
    short = shortened(message)
    assert len(short.encode()) <= 1024
    assert short.endswith("…") or short == message.encode(errors="replace").decode()


@pytest.mark.anyio
async def test_with_amounts_that_change_it_is_one_event_that_says_the_latest() -> None:
    async with recording() as (scene, recorder):
        for left in (3, 2):
            recorder.record(POD, "NoGPUFits", f"{left} units are free", "Warning", latest=True)
        await until(lambda: len(scene.events()) == 1)
        assert (scene.events()[0]["message"], scene.events()[0]["count"]) == ("2 units are free", 2)
        recorder.record(POD, "NoGPUFits", "1 unit is free", "Warning", latest=True)
        await until(lambda: scene.events()[0]["count"] == 3)
        (event,) = scene.events()
        assert event["message"] == "1 unit is free"
        recorder.record(POD, "Other", "1 unit is free", "Warning", latest=True)
        await until(lambda: len(scene.events()) == 2)
