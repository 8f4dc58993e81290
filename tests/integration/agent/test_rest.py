"""A node on which nothing happens: the agent looks, finds what it has found right, and does no more."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputile.api.well_known import GPU_MEMORY
from gputile.node.agent import reconciler as comparing
from gputile.node.agent.differences import Correction, differences
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.integration.agent.scene import Scene, scene


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count what was found in each round that went through all pods."""
    found: list[int] = []

    def counted(*arguments: Any, **settings: Any) -> list[Correction]:
        result = differences(*arguments, **settings)
        found.append(len(result))
        return result

    monkeypatch.setattr(comparing, "differences", counted)
    return found


async def some_rounds(here: Scene, count: int = 4) -> None:
    for _ in range(count):
        asked = here.kubelet.listings
        here.agent.wakeups.compare.wish()
        await here.until(lambda: here.kubelet.listings > asked)  # noqa: B023 - awaited in this turn of the loop
        await asyncio.sleep(0.05)


@pytest.mark.anyio
@pytest.mark.requirement("B1")
async def test_at_rest_nothing_is_gone_through_again(short: Path, rounds: list[int]) -> None:
    """But a change of any of the three, the kubelet's list, the pods or what they hold, is seen."""

    async with scene(short) as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("a", container(mem=2)))
        here.cluster.create(simple_pod("b", container(mem=3)))
        await here.until_running(2)
        await here.until(lambda: rounds[-1:] == [0] and not here.disagreements())
        kubelet = here.agent.kubelet
        kubelet.state = msgspec.structs.replace(kubelet.state, epoch=0.0)  # long settled
        await some_rounds(here)
        at_rest = len(rounds)
        await some_rounds(here)
        assert len(rounds) == at_rest

        pod = here.pod("default/a")
        here.cluster.status(pod.metadata.uid, "Running", "")
        await some_rounds(here, 1)
        assert len(rounds) == at_rest

        here.kubelet.finish(pod.metadata.uid)
        await here.until(lambda: len(rounds) > at_rest)
        here.cluster.delete("default/a")
        await here.until(lambda: len(here.agent.allocation_state.device_table) == 1)
