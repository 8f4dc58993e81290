"""The sums of the cluster's free memory, as Prometheus reads them."""

import asyncio

import pytest
from prometheus_client import generate_latest

from gputile.controlplane.extender.capacity import CapacityWatch
from gputile.support.metrics import MetricsRegistry
from tests.corebuilders import book, gpu_node, ledger_of, share

pytestmark = [pytest.mark.requirement("B7"), pytest.mark.anyio]


async def test_what_is_free_is_summed_up_again_and_again() -> None:
    ledger = ledger_of(gpu_node("n", mode="cgpu", sizes=[16384] * 2))
    watch, registry = CapacityWatch(ledger, every=0.01), MetricsRegistry()
    watch.export(registry)
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(30):
        while watch.latest.free_gpus != 2:  # noqa: ASYNC110 - the watch tells nobody
            await asyncio.sleep(0.01)
        book(ledger, "a", "n", share("GPU-n-0", 4096))
        while watch.latest.free_gpus != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    text = generate_latest(registry).decode()
    for line in (
        f"gputile_ledger_gpu_memory_bytes {2.0 * 2**34}",
        f"gputile_ledger_gpu_memory_booked_bytes {2.0**32}",
        f'gputile_ledger_free_memory_bytes{{hole_gib="8"}} {12.0 * 2**30}',
        f'gputile_ledger_free_memory_bytes{{hole_gib="16"}} {2.0**34}',
        f"gputile_ledger_largest_hole_bytes {2.0**34}",
        "gputile_ledger_free_gpus 1.0",
        "gputile_ledger_fragmentation_ratio 0.0",
    ):
        name, value = line.split(" ")
        (found,) = (each for each in text.splitlines() if each.startswith(f"{name} "))
        assert float(found.split(" ")[1]) == float(value)
