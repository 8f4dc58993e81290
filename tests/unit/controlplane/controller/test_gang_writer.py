"""Rounds on an event loop, on which watches go on to deliver."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from gputile.api.core import Node, Pod
from gputile.api.well_known import RESERVATION_ANNOTATION
from gputile.controlplane.controller.api_server import ApiServerWriter
from gputile.controlplane.controller.gang_writer import GangWriter
from gputile.controlplane.controller.rounds import RoundPlans, Rounds
from gputile.kube.errors import Conflict
from gputile.kube.objects import Applied
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.controller.test_gang_planner import NOW, SECOND, Bench, member, node, placed

pytestmark = pytest.mark.requirement("M13")


class BoundMeanwhile(ApiServerWriter):
    """The first pod that the controller writes to was bound just before."""

    def __init__(self) -> None:
        pass

    async def reserve(self, pod: Pod, text: str | None, nominated: str | None) -> Pod:
        raise Conflict(409, "Conflict", f"{pod.key} has changed")

    async def ungate(self, pod: Pod) -> Pod:
        raise AssertionError(f"{pod.key} has no place")

    async def evict(self, namespace: str, name: str, uid: str, why: str) -> None:
        raise AssertionError(f"{name} is in nobody's way")

    def record(self, about: Pod | Node, reason: str, message: str, *, warning: bool) -> None:
        pass


def rounds(
    bench: Bench,
    writer: BoundMeanwhile,
    compute: Callable[[Callable[[], RoundPlans]], Awaitable[RoundPlans]],
) -> Rounds:
    gang_writer = GangWriter(bench.view, bench.planner, writer, lambda: True, lambda: None)
    return Rounds(bench.view, (bench.planner, gang_writer), None, lambda: True, lambda: NOW * SECOND, compute)


@pytest.mark.anyio
async def test_the_loop_goes_on_while_a_round_is_planned_in_the_worker_thread() -> None:
    """The plan waits for something that only the loop can do."""
    bench, told = Bench(), threading.Event()
    bench.gang("g", 2)

    async def compute(plan: Callable[[], RoundPlans]) -> RoundPlans:
        asyncio.get_running_loop().call_later(0.01, told.set)

        def waits() -> RoundPlans:
            assert told.wait(60)
            return plan()

        return await asyncio.to_thread(waits)

    plans = await rounds(bench, Starting(), compute).run_round()
    assert plans.gangs is not None
    assert placed(plans.gangs) == ["g-0", "g-1"]


@pytest.mark.anyio
async def test_a_gang_of_which_nobody_knows_what_holds_is_left_out_and_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The ledger says that a pod runs, and the list of its gang says that it waits: no such thing may stop the rest."""
    bench = Bench(node("n"), node("m"))
    bench.gang("odd", 2, born="2030-03-17T17:00:00Z")
    bench.gang("g", 2)
    bench.view.ledger.apply_pod(member("odd", 1, 2, node="elsewhere"))
    gang_writer = GangWriter(bench.view, bench.planner, BoundMeanwhile(), lambda: True, lambda: None)
    with caplog.at_level(logging.ERROR):
        result = bench.round()
        assert placed(result) == ["g-0", "g-1"]
        await gang_writer.write(result)
        result = bench.round()
        assert result.contradictions
        await gang_writer.write(result)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "gang default/odd: pod default/odd-1 already has GPUs of node elsewhere" in said
    at_once(bench.view.pod_event(Applied(member("odd", 1, 2, version="2", node="elsewhere"))))
    assert not bench.round().contradictions


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

    async def placeholders_go(self) -> None:
        self.happened.append("there is way")


@pytest.mark.anyio
async def test_pods_start_when_there_is_way_for_them() -> None:
    bench, starting = Bench(), Starting()
    bench.gang("g", 2)
    gang_writer = GangWriter(bench.view, bench.planner, starting, lambda: True, lambda: None)
    await gang_writer.write(bench.round())
    await gang_writer.write(bench.round(), starting.placeholders_go())
    assert starting.happened == ["there is way", "g-0 starts", "g-1 starts"]
