"""What is decided about a pod's Binding, and what the ledger has booked by then."""

import msgspec
import pytest

from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.allocation import decode_allocation
from gputile.core.devices.request import RequestError
from gputile.core.ledger.events import PodApplied
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.fit_refusal import FitRefusal
from gputile.core.scheduling.assume import (
    AlreadyBound,
    BindRefusal,
    BindTime,
    BindVerdict,
    BoundElsewhere,
    WaitsForPod,
    assume_pod,
)
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.pod_binding import PodBinding
from gputile.core.scheduling.reservation_refusal import ReservationRefusal, ReservationRule
from gputile.core.scheduling.reserved_place import is_ordinary
from tests.corebuilders import GIB15, container, gpu_node, ledger_of, pod
from tests.unit.core.scheduling.test_reserved_place import GANGS, holding, member

NOW = BindTime(unix_ns=5, monotonic=7.0)


def verdict_on(ledger: Ledger, asking: Pod, node: str = "n", *, wait: bool = True) -> BindVerdict:
    return assume_pod(PlacementEngine(ledger), asking, node, NOW, wait=wait)


def binding_on(ledger: Ledger, asking: Pod) -> PodBinding:
    verdict = verdict_on(ledger, asking)
    assert isinstance(verdict, PodBinding)
    return verdict


def share_node() -> Ledger:
    return ledger_of(gpu_node(mode="cgpu", sizes=(GIB15, GIB15)), configuration=GANGS)


@pytest.mark.requirement("U1")
def test_an_ordinary_pod_gets_gpus_that_are_booked_by_then() -> None:
    ledger = share_node()
    binding = binding_on(ledger, pod("p", mem=4))
    booking = ledger.booking("p")
    assert booking is not None
    assert booking.allocation is not None
    assert binding.gpus == "GPU 0 (4096 MiB)"
    written = binding.body.metadata.annotations[ALLOCATION_ANNOTATION]
    assert (decode_allocation(written), booking.assumed_at) == (booking.allocation, 7.0)


def test_a_pod_that_asks_for_no_gpu_is_bound_without_a_booking() -> None:
    ledger = share_node()
    binding = binding_on(ledger, pod("p", container()))
    assert (binding.node, binding.body.metadata.annotations, binding.gpus) == ("n", {}, "")
    assert ledger.booking("p") is None


def test_a_refusal_says_why_and_books_nothing() -> None:
    ledger = share_node()
    invalid = verdict_on(ledger, pod("p", core=7))
    assert isinstance(invalid, BindRefusal)
    assert isinstance(invalid.why, RequestError)
    assert invalid.text.startswith("spec.containers[main].resources.limits: ")
    too_large = verdict_on(ledger, pod("p", mem=99))
    assert isinstance(too_large, BindRefusal)
    assert isinstance(too_large.why, FitRefusal)
    why = "node n: its largest GPU has 15 units of 1024 MiB; the pod needs 99 on one GPU"
    assert (too_large.text, ledger.booking("p")) == (why, None)


def test_a_pod_is_bound_once() -> None:
    ledger = share_node()
    verdict_on(ledger, pod("p", mem=4))
    assert verdict_on(ledger, pod("p", mem=4)) == AlreadyBound()
    elsewhere = verdict_on(ledger, pod("p", mem=4), "m")
    assert elsewhere == BindRefusal("m", BoundElsewhere("default/p", "n"))
    assert elsewhere.text == "pod default/p has GPUs of node n already"


@pytest.mark.requirement("M13")
def test_a_pod_of_a_gang_waits_for_the_first_one_or_is_told_of_it() -> None:
    ledger, first, second = share_node(), holding(member("a"), 0), holding(member("b"), 1)
    ledger.apply(PodApplied(first))
    ledger.apply(PodApplied(second))
    assert verdict_on(ledger, second) == WaitsForPod("default/a")
    told = verdict_on(ledger, second, wait=False)
    assert told == BindRefusal("n", ReservationRefusal(ReservationRule.FIRST_NOT_BOUND, pod="default/a"))
    assert told.text == "node n: pod default/a of its gang is bound first, and is not yet"
    binding = binding_on(ledger, first)
    assert (binding.plan, binding.gpus) == ("g/1", "GPU 0 (10240 MiB)")


def test_a_pod_is_ordinary_without_booking_gang_and_reservation() -> None:
    ledger, first = share_node(), holding(member("a"), 0)
    unlabelled = msgspec.structs.replace(first, metadata=msgspec.structs.replace(first.metadata, labels={}))
    assert [is_ordinary(ledger, each) for each in (pod("a", mem=4), member("a"), unlabelled)] == [True, False, False]
    without_gangs = ledger_of(gpu_node(mode="cgpu"))
    assert is_ordinary(without_gangs, member("a"))
    verdict_on(without_gangs, member("a"))
    assert not is_ordinary(without_gangs, member("a"))


@pytest.mark.requirement("B1")
def test_the_watch_is_newer_than_a_reading_that_began_before() -> None:
    ledger, asking = share_node(), pod("p", mem=4)
    binding = binding_on(ledger, asking)
    bound = pod("p", mem=4, node="n", annotations=binding.body.metadata.annotations)
    assert binding.is_executed(bound)
    assert not binding.is_executed(pod("p", mem=4, node="elsewhere", annotations=bound.metadata.annotations))
    reading = binding.begin_reading()
    ledger.apply(PodApplied(bound))
    by_watch = ledger.booking("p")
    reading.apply(pod("p", mem=4, node="elsewhere"), 9.0)
    assert ledger.booking("p") is by_watch
    binding.begin_reading().apply(None, 9.0)
    assert ledger.booking("p") is None
