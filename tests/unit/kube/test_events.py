"""Events are recorded, counted up and bounded; no namespace takes the turns or the places of others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import ObjectReference
from gputile.kube.client import Clock
from gputile.kube.events import EventBuffer, EventKey, EventRecorder, shortened
from tests.fakes.apiserver import QUICK, FakeApiServer, Object, until

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
async def recording() -> AsyncIterator[tuple[Scene, EventRecorder]]:
    server = FakeApiServer()
    async with server.connected() as connection:
        scene = Scene(server)
        recorder = EventRecorder(
            connection,
            "gputile-0",
            burst=5,
            backoff=QUICK,
            clock=Clock(lambda: START + timedelta(seconds=scene.time), lambda: scene.time, scene.sleep),
        )
        task = asyncio.create_task(recorder.run())
        try:
            yield scene, recorder
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.anyio
async def test_the_same_again_counts_up_for_ten_minutes() -> None:
    async with recording() as (scene, recorder):
        for _ in range(3):
            recorder.record(POD, "Shared", "on GPU 3")
        await until(lambda: scene.server.count("post") == 1 and not recorder.buffer)
        assert scene.events()[0]["count"] == 3
        scene.time = 500.0
        recorder.record(POD, "Shared", "on GPU 3")
        await until(lambda: scene.server.count("patch") == 1)
        assert scene.events()[0]["count"] == 4
        assert scene.events()[0]["lastTimestamp"] == "2030-01-02T03:12:25Z"
        await until(
            lambda: len(recorder.buffer.recent) == 1
        )  # the answer has come: what does not wait may be on its way
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
        assert [event["message"] for event in scene.events()] == ["first", "second"]


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


def key(namespace: str, number: int) -> EventKey:
    about = ObjectReference(kind="Pod", namespace=namespace, name=f"p{number}", uid=f"{namespace}-{number}")
    return EventKey(about, "Warning", "NoGPUFits", "none fits")


def put(buffer: EventBuffer, namespace: str, number: int) -> None:
    buffer.add(key(namespace, number), START, 0.0, "none fits")


def taken(buffer: EventBuffer, count: int) -> list[tuple[str, str]]:
    found = [buffer.pop()[0] for _ in range(count)]
    return [(each.about.namespace, each.about.name) for each in found]


def test_a_flood_of_one_namespace_neither_drops_nor_delays_what_others_say() -> None:
    buffer = EventBuffer(100)
    put(buffer, "other", 1)
    for number in range(1000):
        put(buffer, "flood", number)
    put(buffer, "other", 2)
    assert (len(buffer), buffer.dropped) == (100, 902)
    assert taken(buffer, 4) == [("other", "p1"), ("flood", "p902"), ("other", "p2"), ("flood", "p903")]
    assert taken(buffer, 1) == [("flood", "p904")], "what nobody else wants is its own"


def test_what_could_not_be_sent_is_next_of_its_namespace_after_those_of_others() -> None:
    """The API server may limit the Events of one namespace alone: what it refuses for now holds up no others."""
    buffer = EventBuffer(10)
    for namespace in ("a", "b"):
        for number in (1, 2):
            put(buffer, namespace, number)
    failed, occurrences = buffer.pop()
    buffer.requeue(failed, occurrences)
    assert len(buffer) == 4
    assert taken(buffer, 4) == [("b", "p1"), ("a", "p1"), ("b", "p2"), ("a", "p2")]
    assert not len(buffer)


def test_what_is_said_again_while_it_is_sent_counts_once() -> None:
    buffer = EventBuffer(10)
    put(buffer, "a", 1)
    sending, occurrences = buffer.pop()
    put(buffer, "a", 1)
    buffer.requeue(sending, occurrences)
    assert len(buffer) == 1
    again, both = buffer.pop()
    assert (again, both.count) == (sending, 2)
    buffer.record_sent(again, both)
    put(buffer, "a", 1)
    assert buffer.pop()[1].count == 3


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)) | st.none()), st.integers(1, 6))
def test_there_are_never_more_than_may_wait(steps: list[tuple[str, int] | None], capacity: int) -> None:
    """None takes one; each other step puts one."""
    buffer = EventBuffer(capacity)
    for step in steps:
        if step is not None:
            put(buffer, *step)
        elif len(buffer):
            before = len(buffer)
            buffer.pop()
            assert len(buffer) == before - 1
        assert len(buffer) <= capacity
    left = taken(buffer, len(buffer))
    assert len(set(left)) == len(left)
    assert not len(buffer)
