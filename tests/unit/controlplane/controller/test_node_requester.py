"""What is written of a round, and what becomes of a write that fails."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gputile.api.core import Node, Pod
from gputile.api.well_known import IDLE_NODE_ANNOTATION
from gputile.controlplane.controller import placeholders
from gputile.controlplane.controller.api_server import ApiServerWriter
from gputile.controlplane.controller.placeholders import NodeRequester
from gputile.kube.errors import AnswerLost, ConnectionFailed, Forbidden, KubeError, NotFound
from tests.unit.controlplane.controller.test_node_request_planner import (
    TYPE,
    WAIT,
    Bench,
    asked,
    fragmented,
    node,
    tolerant_member,
    waits,
)

pytestmark = [pytest.mark.requirement("U8"), pytest.mark.anyio]


class Writer(ApiServerWriter):
    """Notes what it is to write, and fails as it is told."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.deleted: list[str] = []
        self.marked: list[str] = []
        self.said: list[str] = []
        self.texts: list[str] = []
        self.error: KubeError | None = None
        self.wrote = asyncio.Event()

    async def create_placeholder(self, job: Mapping[str, Any]) -> None:
        self.created.append(job["metadata"]["name"])
        self._fail()

    async def delete_placeholder(self, job: str) -> None:
        self.deleted.append(job)
        self._fail()

    async def mark_unschedulable(self, pod: Pod, message: str) -> None:
        self.marked.append(pod.metadata.name)
        self._fail()

    def record(self, about: Pod | Node, reason: str, message: str, *, warning: bool) -> None:
        self.said.append(reason)
        self.texts.append(message)

    def _fail(self) -> None:
        self.wrote.set()
        if self.error is not None:
            raise self.error


def requester_of(bench: Bench, writer: Writer) -> NodeRequester:
    return NodeRequester(bench.planner.placeholders, writer, lambda: bench.waiting.placeholders)


class Requests:
    """A requester on a cluster where one pod waits for a node."""

    def __init__(self) -> None:
        self.bench = fragmented()
        self.bench.put(waits("p", mem=10))
        self.writer = Writer()
        self.active = True
        self.requester = requester_of(self.bench, self.writer)

    async def round(self, after: float = 10) -> None:
        result = self.bench.plan(after)
        if self.active:
            await self.requester.write(result)
        else:
            self.bench.planner.abandon()


async def test_a_placeholder_of_which_nobody_knows_is_not_written_again_at_once() -> None:
    """The answer may have been lost: a second one would bring a second node."""
    requests = Requests()
    requests.writer.error = AnswerLost("cut off")
    await requests.round()
    await requests.round(11)
    assert requests.writer.created == ["gputile-placeholder-0"]
    assert requests.writer.said == ["NodeRequested"]
    assert requests.requester.failures == 1


async def test_a_placeholder_that_is_refused_is_told_and_tried_again_after_ever_longer_pauses() -> None:
    requests = Requests()
    requests.writer.error = Forbidden(403, "Forbidden", "a policy of namespace gputile refuses it")
    await requests.round()
    await requests.round(11)
    assert requests.writer.said == ["NodeRequested", "NodeNotAdded"]
    assert "no placeholder could be created" in requests.writer.texts[-1]
    for after in range(20, 6 * WAIT, 60):
        await requests.round(after)
    assert len(requests.writer.created) == 3, "after 900 and after 1800 seconds more"


async def test_a_placeholder_that_was_not_sent_is_written_again() -> None:
    requests = Requests()
    requests.writer.error = ConnectionFailed("refused")
    await requests.round()
    requests.writer.error = None
    await requests.round(11)
    await requests.round(12)
    assert len(requests.writer.created) == 2
    assert "NodeNotAdded" not in requests.writer.said


async def test_a_deletion_that_failed_is_tried_again_and_one_that_was_done_is_not() -> None:
    requests = Requests()
    requests.bench.round()  # the placeholder exists
    requests.bench.drop(waits("p", mem=10))
    requests.writer.error = Forbidden(403, "Forbidden", "no")
    await requests.round(11)
    requests.writer.error = NotFound(404, "NotFound", "gone")
    await requests.round(12)
    await requests.round(13)
    assert requests.writer.deleted == ["gputile-placeholder-0"] * 2
    assert asked(requests.bench) == 0


async def test_a_replica_that_does_not_lead_writes_nothing() -> None:
    requests = Requests()
    requests.active = False
    await requests.round()
    assert (requests.writer.created, requests.writer.said) == ([], [])
    requests.active = True
    await requests.round(11)
    assert len(requests.writer.created) == 1, "and what it decided then is forgotten"


class Starting(Requests):
    """A gang of two nodes, one of which is there and idle: a placeholder stands on it until the gang starts."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(node("empty", type_=TYPE), gangs=True)
        self.bench.put(*(tolerant_member(number) for number in range(3)))
        self.bench.round()
        self.placeholders = list(self.bench.waiting.placeholders.values())
        assert [IDLE_NODE_ANNOTATION in each.metadata.annotations for each in self.placeholders] == [False, True]
        self.bench.join(node("new", type_=TYPE))
        for after in (20, 21):
            self.bench.plan_gangs(after)
        assert self.bench.gates, "the gang starts"
        self.requester = requester_of(self.bench, self.writer)


async def test_a_gang_starts_when_the_placeholders_are_gone_where_it_does() -> None:
    starting = Starting()
    await starting.requester.write(starting.bench.plan(22))
    assert set(starting.writer.deleted) == {each.metadata.name for each in starting.placeholders}
    waiting = asyncio.create_task(starting.requester.placeholders_gone())
    await asyncio.sleep(0.2)
    assert not waiting.done(), "they are deleted, and still there in an autoscaler's eyes"
    starting.bench.drop(*starting.placeholders)
    async with asyncio.timeout(60):
        await waiting


async def test_a_gang_does_not_wait_for_ever_for_placeholders_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placeholders, "LOOKS", 2)
    starting = Starting()
    starting.bench.plan(22)
    async with asyncio.timeout(60):
        await starting.requester.placeholders_gone()
