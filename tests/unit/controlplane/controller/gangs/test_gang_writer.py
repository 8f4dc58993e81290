"""Rounds on an event loop, on which watches go on to deliver."""

import asyncio
import logging

import msgspec
import pytest

from gputile.api.core import Node, Pod
from gputile.api.well_known import RESERVATION_ANNOTATION
from gputile.controlplane import event_loop
from gputile.controlplane.controller.gangs.gang_writer import GangWriter
from gputile.controlplane.controller.queues import UpdateQueue
from gputile.core.ledger.events import PodApplied
from gputile.core.placement.steps import at_once
from gputile.kube.errors import Conflict
from gputile.kube.objects import Applied
from tests.unit.controlplane.controller.gangs.test_gang_planner import NOW, SECOND, Bench, member, node, placed

pytestmark = pytest.mark.requirement("M13")


class BoundMeanwhile:
    """The first pod that the controller writes to was bound just before."""

    async def reserve(self, pod: Pod, text: str | None, nominated: str | None) -> Pod:
        raise Conflict(409, "Conflict", f"{pod.key} has changed")

    async def ungate(self, pod: Pod) -> Pod:
        raise AssertionError(f"{pod.key} has no place")

    async def pod(self, namespace: str, name: str) -> Pod | None:
        return member("g", int(name[-1]), 2, version="2", node="n")

    async def evict(self, namespace: str, name: str, uid: str, why: str) -> None:
        raise AssertionError(f"{name} is in nobody's way")

    def record(self, about: Pod | Node, reason: str, message: str, *, warning: bool) -> None:
        pass


@pytest.mark.anyio
async def test_a_round_sees_the_cluster_as_it_was_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever step it is at when the news come that one of the pods is bound that it looks for places for."""
    monkeypatch.setattr(event_loop, "SLICE_SECONDS", 0.0)  # others get their turn after each step
    came_in_time, step = True, 0
    while came_in_time:
        step, came_in_time = step + 1, await _bound_at(step)
    assert step > 10, "a round has many steps"


async def _bound_at(step: int) -> bool:
    """Run a round in which the watch delivers after so many steps; return whether it had as many."""
    bench, updates, steps = Bench(), UpdateQueue(), 0
    bench.gang("g", 2)

    def active() -> bool:
        nonlocal steps
        steps += 1
        if steps == step:
            updates.put(bench.view.pod_event(Applied(member("g", 0, 2, version="2", node="n"))))
        return True

    gang_writer = GangWriter(bench.view, bench.planner, BoundMeanwhile(), active, lambda: NOW * SECOND, updates)
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(updates.run())
        assert placed(await gang_writer.run_round()) == ["g-0", "g-1"]
        await updates.drained()
        taking.cancel()
    (booking,) = bench.view.ledger.bookings()
    assert (booking.name, booking.node, booking.reserved) == ("g-0", "n", False)
    return steps >= step


@pytest.mark.anyio
async def test_a_gang_of_which_nobody_knows_what_holds_is_left_out_and_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The ledger says that a pod runs, and the list of its gang says that it waits: no such thing may stop the rest."""
    bench = Bench(node("n"), node("m"))
    bench.gang("odd", 2, born="2030-03-17T17:00:00Z")
    bench.gang("g", 2)
    bench.view.ledger.apply(PodApplied(member("odd", 1, 2, node="elsewhere")))
    gang_writer = GangWriter(
        bench.view, bench.planner, BoundMeanwhile(), lambda: True, lambda: NOW * SECOND, UpdateQueue()
    )
    with caplog.at_level(logging.ERROR):
        assert placed(await gang_writer.run_round()) == ["g-0", "g-1"]
        assert (await gang_writer.run_round()).contradictions
    (said,) = [record.getMessage() for record in caplog.records]
    assert "gang default/odd: pod default/odd-1 already holds GPUs of node elsewhere" in said
    at_once(bench.view.pod_event(Applied(member("odd", 1, 2, version="2", node="elsewhere"))))
    assert not (await gang_writer.run_round()).contradictions


class Starting(BoundMeanwhile):
    """Notes in which order things happen."""

    def __init__(self) -> None:
        self.happened: list[str] = []

    async def reserve(self, pod: Pod, text: str | None, nominated: str | None) -> Pod:
        annotations = pod.metadata.annotations | {RESERVATION_ANNOTATION: text or ""}
        return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations))

    async def ungate(self, pod: Pod) -> Pod:
        self.happened.append(f"{pod.metadata.name} starts")
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduling_gates=()))

    async def make_way(self) -> None:
        self.happened.append("there is way")


@pytest.mark.anyio
async def test_pods_start_when_there_is_way_for_them() -> None:
    bench, starting = Bench(), Starting()
    bench.gang("g", 2)
    gang_writer = GangWriter(bench.view, bench.planner, starting, lambda: True, lambda: NOW * SECOND, UpdateQueue())
    gang_writer.make_way = starting.make_way
    for _ in range(3):
        await gang_writer.run_round()
    assert starting.happened == ["there is way", "g-0 starts", "g-1 starts"]
