"""Prices are learnt beside the decisions, in a process of their own."""

import asyncio
import contextlib

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.controlplane.extender.server import PriceLearning
from gputile.core.devices.request import parse_request
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.packing_scores import PackingState
from gputile.core.scheduling.demand import FIRST_DUE, DemandTracker
from gputile.core.scheduling.placement_engine import PlacementEngine
from tests.conftest import HANGS_S
from tests.fakes.corebuilders import book, gpu_node, pod, share


async def market_after(engine: PlacementEngine, before: PackingState | None) -> PackingState:
    """Wait for what prices that are learnt next make of the supply."""
    async with asyncio.timeout(120):
        while engine.packing_state is before or engine.packing_state is None:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        return engine.packing_state


@pytest.mark.anyio
async def test_prices_follow_the_pods_that_come() -> None:
    ledger = Ledger(Configuration(placement="packing"))
    ledger.apply_node(gpu_node("n", mode="cgpu"))
    engine = PlacementEngine(ledger)
    request = parse_request(pod("p", mem=5), 1024)
    assert request is not None
    assert engine.demand is not None
    engine.rank(request, ["n"])
    before = engine.packing_state
    task = asyncio.create_task(PriceLearning(engine, look_every=0.01).run())
    for i in range(FIRST_DUE):
        asking = pod(f"p{i}", mem=5)
        engine.demand.observe(asking, parse_request(asking, 1024))
    learnt = await market_after(engine, before)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert before is not None
    # thirds are what is asked for now: a third of a GPU is worth a third
    assert abs(learnt.prices.value[334] - 1 / 3) < abs(before.prices.value[334] - 1 / 3)


@pytest.mark.anyio
async def test_the_first_decision_waits_for_no_prices_and_goes_by_the_plain_rule() -> None:
    """As binpack decides; the prices come, from the pods that hold GPUs, without a pod that asks."""

    nodes = [gpu_node("empty", mode="cgpu"), gpu_node("used", mode="cgpu")]
    ledger, plain = Ledger(Configuration(placement="packing")), Ledger(Configuration(placement="binpack"))
    for each in (ledger, plain):
        for node in nodes:
            each.apply_node(node)
        for i in range(1200):
            book(each, f"u{i}", "used", share("GPU-used-0", 1))
    engine = PlacementEngine(ledger, prices_later=True)
    request = parse_request(pod("p", mem=5), 1024)
    assert request is not None
    names = ["empty", "used"]
    assert engine.rank(request, names) == PlacementEngine(plain).rank(request, names)
    assert engine.packing_state is None
    assert engine.demand is not None
    engine.demand.observe(pod("p", mem=5), request)
    pieces = len(list(DemandTracker(ledger).catch_up()))
    assert pieces == 3, "500 pods at once"
    task = asyncio.create_task(PriceLearning(engine, look_every=0.01).run())
    await market_after(engine, None)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    learnt, at_once = engine.demand.demand(), DemandTracker(ledger)
    at_once.observe(pod("p", mem=5), request)
    assert sorted(learnt.weight.tolist()) == pytest.approx(
        sorted(at_once.demand().weight.tolist()), rel=0.1
    )  # forgotten in another order


@pytest.mark.anyio
async def test_nothing_is_learnt_where_nobody_goes_by_prices() -> None:
    async with asyncio.timeout(HANGS_S):
        await PriceLearning(PlacementEngine(Ledger(Configuration()))).run()
