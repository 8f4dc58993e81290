"""What pending GPU pods wait for, by what the watch and the events of the extender say of them."""

import msgspec
import pytest

from gputile.api.core import Pod, SchedulingGate
from gputile.api.reasons import EventReason
from gputile.api.well_known import WHOLE_GPU
from gputile.controlplane.extender.informer import Informer
from gputile.controlplane.extender.pending_pods import PendingPods, PendingReason
from gputile.core.devices.request import by_namespace
from gputile.kube.objects import Applied, Deleted, Replaced
from tests.corebuilders import ledger_of, pod

pytestmark = pytest.mark.requirement("B7")


class Clock:
    """Unix time, as the test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pending(*pods: Pod, clock: Clock | None = None) -> PendingPods:
    found = PendingPods(1024, by_namespace, clock or Clock())
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


def test_what_is_deleted_finished_or_no_longer_listed_is_forgotten() -> None:
    found = pending()
    informer = Informer(ledger_of(), lambda _: None, (found,))
    for name in "abc":
        informer.pods(Applied(pod(name, mem=1)))
    informer.pods(Deleted(pod("a", mem=1)))
    informer.pods(Applied(pod("b", mem=1, phase="Failed")))
    assert counts(found) == {"not_placed": 1}
    informer.pods(Replaced([pod("d", mem=1)], []))
    assert counts(found) == {"not_placed": 1}
    informer.pods(Replaced([], []))
    assert counts(found) == {}


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


def test_a_wait_that_began_while_the_clock_was_ahead_began_when_that_was_over() -> None:
    clock = Clock()
    clock.now = 1e9
    found = pending(pod("a", mem=1), clock=clock)
    for clock.now in (1000.0, 2000.0):
        assert dict(found.since())["not_placed"] == 1000
