"""What pending GPU pods wait for, by what the watch and the events of the extender say of them."""

import msgspec
import pytest

from gputile.api.core import Pod, SchedulingGate
from gputile.api.well_known import WHOLE_GPU
from gputile.controlplane.extender.informer import Informer
from gputile.controlplane.extender.pending_pods import PendingPods, PendingReason
from gputile.core.devices.request import by_namespace
from gputile.kube.decoding import Applied, Deleted, Replaced
from tests.corebuilders import ledger_of, pod

pytestmark = pytest.mark.requirement("B7")


def pending(*pods: Pod) -> PendingPods:
    found = PendingPods(1024, by_namespace)
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
    found.told("a", "NoGPUFits")
    found.told("none", "NoGPUFits")
    assert counts(found) == {"not_placed": 1, "no_gpu_fits": 1, "invalid_request": 1}
    found.pod_applied(pod("a", mem=1))
    assert counts(found)["no_gpu_fits"] == 1, "a change of the pod finds it no GPU"
    found.told("a", "GPUAssigned")
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
