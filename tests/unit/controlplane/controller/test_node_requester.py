"""What is written of a round, and what becomes of a write that fails."""

import asyncio

import pytest

from gputile.controlplane.controller import placeholders
from gputile.kube.errors import AnswerLost, Forbidden, NotFound, TooManyRequests
from tests.unit.controlplane.controller.test_node_request_planner import (
    TYPE,
    WAIT,
    Bench,
    fragmented,
    node,
    tolerant_member,
    waits,
)

pytestmark = [pytest.mark.requirement("U8"), pytest.mark.anyio]


def one_waits() -> Bench:
    bench = fragmented()
    bench.put(waits("p", mem=10))
    return bench


async def test_a_placeholder_of_which_nobody_knows_is_not_written_again_at_once() -> None:
    """The answer may have been lost: a second one would bring a second node."""
    bench = one_waits()
    bench.writer.error = AnswerLost("cut off")
    bench.round()
    bench.round(11)
    assert len(bench.writer.created) == 1
    assert bench.writer.said == ["NodeRequested"]
    assert bench.placeholders.failures == 1


async def test_a_placeholder_that_was_certainly_not_written_is_written_again() -> None:
    bench = one_waits()
    bench.writer.error = TooManyRequests(429, "TooManyRequests", "later")
    bench.round()
    bench.round(11)
    assert len(bench.writer.created) == 2


async def test_a_placeholder_that_is_refused_is_told_and_tried_again_after_ever_longer_pauses() -> None:
    bench = one_waits()
    bench.writer.error = Forbidden(403, "Forbidden", "a policy of namespace gputile refuses it")
    for after in range(10, 6 * WAIT, 60):
        bench.round(after)
    assert bench.writer.said[:2] == ["NodeRequested", "NodeNotAdded"]
    assert len(bench.writer.created) == 2, "after as long again; then after four times as long"


async def test_a_deletion_that_failed_is_tried_again() -> None:
    bench = one_waits()
    bench.round()
    bench.drop(waits("p", mem=10))
    bench.writer.error = Forbidden(403, "Forbidden", "no")
    bench.round(11)
    assert bench.waiting.placeholders != {}
    bench.writer.error = None
    bench.round(12)
    bench.round(13)
    assert bench.writer.deleted == ["gputile-placeholder-0"] * 2
    assert bench.waiting.placeholders == {}


class Starting(Bench):
    """A gang of two nodes, one of which is there and idle: a placeholder stands on it until the gang starts."""

    def __init__(self) -> None:
        super().__init__(node("empty", type_=TYPE), gangs=True)
        self.put(*(tolerant_member(number) for number in range(3)))
        self.round()
        self.there = list(self.waiting.placeholders.values())
        assert len(self.there) == 2
        self.join(node("new", type_=TYPE))
        for after in (20, 21):
            self.plan_gangs(after)
        assert self.gates, "the gang starts"
        self.writer.error = NotFound(404, "NotFound", "gone, but for its pod")


async def test_a_gang_starts_when_the_placeholders_are_gone_where_it_does() -> None:
    starting = Starting()
    starting.request(22)
    assert set(starting.writer.deleted) == {each.metadata.name for each in starting.there}
    waiting = asyncio.create_task(starting.placeholders.wait_until_gone())
    await asyncio.sleep(0.2)
    assert not waiting.done(), "they are deleted, and still there in an autoscaler's eyes"
    starting.drop(*starting.there)
    async with asyncio.timeout(60):
        await waiting


async def test_a_gang_does_not_wait_for_ever_for_placeholders_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placeholders, "CHECKS", 2)
    starting = Starting()
    starting.request(22)
    async with asyncio.timeout(60):
        await starting.placeholders.wait_until_gone()
