"""What the extender counts: pods that wait, for what and for how long, and what is free."""

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest
from prometheus_client import generate_latest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod, SchedulingGate
from gputile.api.well_known import WHOLE_GPU, EventReason
from gputile.controlplane.extender import metrics
from gputile.controlplane.extender.metrics import CapacityWatch, ExtenderMetrics, PendingPods, PendingReason
from gputile.support.telemetry import MetricsRegistry
from tests.fakes.corebuilders import book, gpu_node, ledger_of, pod, share

pytestmark = pytest.mark.requirement("B7")


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("created", "count", "total"),
    [
        ("2026-01-02T03:04:00Z", 1, 5),
        ("2026-01-02T03:04:09Z", 1, 0),  # the API server's clock is ahead
        (None, 0, 0),
        ("nonsense", 0, 0),
    ],
)
def test_a_bound_pods_wait_is_counted(created: str | None, count: int, total: int) -> None:
    metrics, bound = ExtenderMetrics(), pod("a", mem=1)
    bound.metadata.creation_timestamp = created
    metrics.waited(bound, NOW)
    text = generate_latest(metrics.registry).decode()
    assert f"gputile_extender_pod_wait_seconds_count {count}.0" in text
    assert f"gputile_extender_pod_wait_seconds_sum {total}.0" in text


class Clock:
    """Unix time, as the test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pending(*pods: Pod, clock: Clock | None = None) -> PendingPods:
    found = PendingPods(1024, Configuration().trust_group, clock or Clock())
    for each in pods:
        found.pod_applied(each)
    return found


def counts(found: PendingPods) -> dict[str, float]:
    return {reason: number for reason, number in found.counts() if number}


def gated(each: Pod) -> Pod:
    spec = msgspec.structs.replace(each.spec, scheduling_gates=(SchedulingGate("g"),))
    return msgspec.structs.replace(each, spec=spec)


def test_every_reason_is_told_also_of_nobody() -> None:
    assert pending().counts() == [(reason.value, 0) for reason in PendingReason]


def test_a_pod_waits_for_what_was_last_said_of_it() -> None:
    found = pending(pod("a", mem=1), pod("b", mem=1), pod("none"), pod("bad", mem=1, asks={WHOLE_GPU: 1}))
    assert counts(found) == {"not_placed": 2, "invalid_request": 1}
    found.event_recorded("a", EventReason.NO_GPU_FITS)
    found.event_recorded("none", EventReason.NO_GPU_FITS)
    assert counts(found) == {"not_placed": 1, "no_gpu_fits": 1, "invalid_request": 1}
    found.pod_applied(pod("a", mem=1))
    assert counts(found)["no_gpu_fits"] == 1, "a change of the pod finds it no GPU"
    found.event_recorded("a", EventReason.GPU_ASSIGNED)
    found.pod_applied(pod("a", node="n", mem=1))
    assert "no_gpu_fits" not in counts(found)


def test_a_gated_pod_waits_for_its_gates() -> None:
    found = pending(gated(pod("a", mem=1)))
    assert counts(found) == {"gated": 1}
    found.pod_applied(pod("a", mem=1))
    assert counts(found) == {"not_placed": 1}


def test_since_when_the_pod_has_waited_that_has_waited_longest() -> None:
    """However many come and go: who waits for a minute has not waited for an hour because somebody always waits."""
    clock = Clock()
    found = pending(pod("a", mem=1), pod("b", mem=1), clock=clock)
    assert dict(found.since()) == {"no_gpu_fits": 0, "invalid_request": 0, "gated": 0, "not_placed": 1000}
    clock.now = 1060
    found.event_recorded("a", EventReason.NO_GPU_FITS)
    clock.now = 1120
    found.event_recorded("b", EventReason.NO_GPU_FITS)
    found.event_recorded("a", EventReason.NO_GPU_FITS)
    found.pod_applied(pod("a", mem=1))
    assert dict(found.since())["no_gpu_fits"] == 1060, "told again it waits as before"
    found.pod_applied(pod("a", node="n", mem=1))
    assert dict(found.since())["no_gpu_fits"] == 1120
    found.pod_deleted("b")
    assert dict(found.since())["no_gpu_fits"] == 0


@pytest.mark.anyio
async def test_what_is_free_is_summed_up_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "EVERY_S", 0.01)
    ledger = ledger_of(gpu_node("n", mode="cgpu", sizes=[16384] * 2))
    watch, registry = CapacityWatch(ledger), MetricsRegistry()
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
    assert "gputile_ledger_free_gpus 1.0" in text
    assert 'gputile_ledger_free_memory_bytes{at_least_gib="8"} 1.2884901888e+10' in text
