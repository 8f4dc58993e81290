"""What is decided about a pod that is to be bound: by its request, or by the place that a plan keeps for it."""

from collections.abc import Sequence
from enum import Enum

import msgspec
import pytest

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Pod
from gputile.api.well_known import (
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    RESERVATION_ANNOTATION,
    WHOLE_GPU,
)
from gputile.core.devices.allocation import (
    Allocation,
    Reservation,
    encode_reservation,
    reservation_of,
)
from gputile.core.ledger.ledger import Ledger
from gputile.core.refusal import BindRule, FitRule, Refusal, ReservationRule
from gputile.core.scheduling.bind import PodBinding, assume_pod, decide_pod, pod_was_read
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.reservation_rules import reserved_node, waits_for_first
from tests.costs.calls import calls
from tests.fakes.corebuilders import GIB15, book, container, gpu_node, ledger_of, pod, request_of, share

GANGS = Configuration(admission=AdmissionConfiguration(gangs=True))
LATER = 1000
NOW = 5, 7.0


def member(name: str, units: int = 10, *, gang: str = "g", size: int = 2) -> Pod:
    asking = pod(name, mem=units)
    labels = {GANG_NAME_LABEL: gang, GANG_SIZE_LABEL: str(size)}
    return msgspec.structs.replace(asking, metadata=msgspec.structs.replace(asking.metadata, labels=labels))


def holding(
    asking: Pod, gpu: int, *, units: int = 10, plan: str = "g/1", size: int = 2, expires_ns: int = LATER
) -> Pod:
    shares = (share(f"GPU-n-{gpu}", units * 1024),)
    allocation = Allocation(shares, {"main": shares}, 1024, mode="cgpu")
    hold = Reservation(plan, size, size, "n", expires_ns, allocation, first=asking.metadata.name == "a")
    meta = msgspec.structs.replace(asking.metadata, annotations={RESERVATION_ANNOTATION: encode_reservation(hold)})
    return msgspec.structs.replace(asking, metadata=meta)


def ledger_with(*pods: Pod, sizes: Sequence[int] = (GIB15, GIB15)) -> Ledger:
    ledger = ledger_of(gpu_node(mode="cgpu", sizes=sizes), configuration=GANGS)
    for each in pods:
        ledger.apply_pod(each)
    return ledger


def claimed(ledger: Ledger, asking: Pod, node: str = "n") -> PodBinding | Refusal[FitRule] | Refusal[ReservationRule]:
    return decide_pod(PlacementEngine(ledger), asking, request_of(asking), node, *NOW)


def problem(ledger: Ledger, asking: Pod, now_ns: int) -> str:
    """Return why a pod must wait, in words, "" where it need not."""
    place = reserved_node(ledger, asking, now_ns)
    return place.text if isinstance(place, Refusal) else ""


@pytest.mark.requirement("M13", "B5")
@pytest.mark.parametrize(("replicas", "starts"), [(4, True), (2, True), (0, False)])
def test_a_gang_that_shares_a_time_sliced_gpu_starts(replicas: int, starts: bool) -> None:
    """A whole GPU that pods have in turns has room for as many of them as there are turns."""
    ledger = ledger_of(gpu_node(mode="default", sizes=(GIB15,), replicas=replicas), configuration=GANGS)
    shares = (share("GPU-n-0", GIB15, 100),)
    allocation = Allocation(shares, {"main": shares}, 1024, mode="default", whole=True)
    held = []
    for name in ("a", "b"):
        asking = pod(name, asks={WHOLE_GPU: 1})
        hold = Reservation("g/1", 2, 2, "n", LATER, allocation, first=name == "a")
        labels = {GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "2"}
        notes = {RESERVATION_ANNOTATION: encode_reservation(hold)}
        meta = msgspec.structs.replace(asking.metadata, labels=labels, annotations=notes)
        held.append(msgspec.structs.replace(asking, metadata=meta))
        ledger.apply_pod(held[-1])
    assert isinstance(claimed(ledger, held[0]), PodBinding) == starts


@pytest.mark.requirement("M13", "B5")
def test_a_pod_that_lost_its_labels_still_belongs_to_its_plan() -> None:
    """Else it would begin a plan of which a place is missing, and the others could follow it."""
    first, second = holding(member("a"), 0), holding(member("b"), 1)
    stripped = msgspec.structs.replace(first, metadata=msgspec.structs.replace(first.metadata, labels={}))
    ledger = ledger_with(stripped)
    assert problem(ledger, stripped, 0) == "1 of the 2 reservations of its plan exist so far"
    assert isinstance(claimed(ledger, stripped), Refusal)
    ledger.apply_pod(second)
    assert isinstance(claimed(ledger, stripped), PodBinding)


@pytest.mark.requirement("M13", "B5")
def test_a_held_gpu_is_not_given_to_others() -> None:
    held = holding(member("a"), 0)
    ledger = ledger_with(held, sizes=(GIB15,))
    assert isinstance(claimed(ledger, pod("thief", mem=6)), Refusal)
    assert isinstance(claimed(ledger, pod("small", mem=5)), PodBinding)
    ledger.set_time(LATER - 1)
    assert isinstance(claimed(ledger, pod("thief", mem=6)), Refusal)
    ledger.set_time(LATER)
    assert isinstance(claimed(ledger, pod("thief", mem=6)), PodBinding)
    ledger.apply_pod(held)
    assert ledger.booking("a") is None, "what has ended does not begin again"


@pytest.mark.requirement("M13", "B5")
def test_a_binding_that_failed_leaves_the_hold_as_it_was() -> None:
    first, second = holding(member("a"), 0), holding(member("b"), 1)
    ledger = ledger_with(first, second)
    before = ledger.booking("a")
    binding = claimed(ledger, first)
    assert isinstance(binding, PodBinding)
    booking = binding.booking
    assert booking is not None
    ledger.assume(booking)
    ledger.apply_pod(first)
    assert ledger.booking("a") == booking, "old news does not undo a Binding under way"
    ledger.forget("a")
    assert ledger.booking("a") == before


@pytest.mark.requirement("M13", "B5")
def test_the_ledger_forgets_holds_of_pods_that_are_gone_moved_or_rid_of_them() -> None:
    ledger = ledger_with(
        holding(member("a", 1), 0, units=1), holding(member("b"), 1), holding(member("c", 5), 1, units=5)
    )
    ledger.apply_pod(holding(member("a", 1), 1, units=1))
    assert ledger.node_arrays.used[0, :2].tolist() == [0, 16 * 1024]
    ledger.apply_pod(member("a", 1))
    ledger.remove_pod("b")
    assert ledger.node_arrays.used[0, :2].tolist() == [0, 5 * 1024]
    ledger.replace_pods([])
    assert not list(ledger.bookings())


@pytest.mark.requirement("B2")
def test_a_hold_counts_only_where_gangs_are_planned() -> None:
    """Without the admission webhook that protects it, anybody could have written the annotation."""
    ledger = Ledger(Configuration())
    ledger.apply_node(gpu_node(mode="cgpu"))
    ledger.apply_pod(holding(member("a"), 0))
    assert ledger.booking("a") is None
    assert problem(ledger, member("a"), 0) == ""
    assert reserved_node(ledger, holding(member("a"), 0), 0) is None


@pytest.mark.requirement("M13", "B5")
def test_a_place_is_lost_with_its_node_its_gpu_its_mode_or_its_unit() -> None:
    held = holding(member("a", size=1), 0, size=1)
    for change, text in (
        (gpu_node(mode="cgpu", sizes=(GIB15,), unhealthy=(0,)), "is gone or unhealthy"),
        (gpu_node(mode="core_mem", sizes=(GIB15,)), "has another mode now"),
        (gpu_node(mode="cgpu", sizes=(GIB15,), unit_mib=128), "has another memory unit now"),
        (gpu_node("m", mode="cgpu", sizes=(GIB15,)), "node n, reserved for default/a, is gone"),
    ):
        ledger = ledger_of(change, configuration=GANGS)
        ledger.apply_pod(held)
        assert text in problem(ledger, held, 0)


@pytest.mark.requirement("B1")
@pytest.mark.parametrize(
    "change",
    [
        {"gpus": (share("GPU-n-0", 9 * 1024),)},
        {"gpus": (share("GPU-n-0", 11 * 1024),)},
        {"gpus": (share("GPU-n-0", 10 * 1024, 5),)},
        {"gpus": (share("GPU-n-0", 10 * 1024), share("GPU-n-1", 10 * 1024))},
        {"whole": True},
        {"unit_mib": 128},
    ],
    ids=["less", "more", "compute", "gpus", "whole", "unit"],
)
def test_a_place_for_something_else_than_the_pod_asks_for_is_none(change: dict[str, object]) -> None:
    """Its Binding would write down what the place says, and the kubelet gives what the pod asks for."""
    held = holding(member("a", size=1), 0, size=1)
    told = reservation_of(held)
    assert told is not None
    assert told.allocation is not None
    lie = msgspec.structs.replace(told, allocation=msgspec.structs.replace(told.allocation, containers={}, **change))
    meta = msgspec.structs.replace(held.metadata, annotations={RESERVATION_ANNOTATION: encode_reservation(lie)})
    lying = msgspec.structs.replace(held, metadata=meta)
    ledger = ledger_with(lying)
    assert ledger.booking("a") is None
    assert problem(ledger, lying, 0) == "gang g: no GPUs are reserved for the pod yet"
    assert isinstance(claimed(ledger, lying), Refusal)


@pytest.mark.requirement("M13", "B5")
def test_a_place_on_a_node_of_another_device_plugin_is_the_node_alone() -> None:
    asking = member("a", size=1)
    hold = Reservation("g/1", 0, 1, "foreign", LATER)
    meta = msgspec.structs.replace(asking.metadata, annotations={RESERVATION_ANNOTATION: encode_reservation(hold)})
    held = msgspec.structs.replace(asking, metadata=meta)
    ledger = ledger_with(held)
    assert reserved_node(ledger, held, 0) == "foreign"
    assert problem(ledger, held, 0) == ""
    assert problem(ledger, held, LATER) == "gang g: no GPUs are reserved for the pod yet"


def verdict_on(ledger: Ledger, asking: Pod, node: str = "n") -> PodBinding | Refusal[Enum] | None:
    return assume_pod(PlacementEngine(ledger), asking, node, *NOW)


def binding_on(ledger: Ledger, asking: Pod) -> PodBinding:
    verdict = verdict_on(ledger, asking)
    assert isinstance(verdict, PodBinding)
    return verdict


def share_node() -> Ledger:
    return ledger_of(gpu_node(mode="cgpu", sizes=(GIB15, GIB15)), configuration=GANGS)


def test_a_pod_that_asks_for_no_gpu_is_bound_without_a_booking() -> None:
    ledger = share_node()
    binding = binding_on(ledger, pod("p", container()))
    assert (binding.node, binding.body.metadata.annotations, binding.gpus) == ("n", {}, "")
    assert ledger.booking("p") is None


def test_a_refusal_says_why_and_books_nothing() -> None:
    ledger = share_node()
    invalid = verdict_on(ledger, pod("p", core=7))
    assert isinstance(invalid, Refusal)
    assert invalid.rule is BindRule.INVALID
    assert invalid.text.startswith("spec.containers[main].resources.limits: ")
    too_large = verdict_on(ledger, pod("p", mem=99))
    assert isinstance(too_large, Refusal)
    assert too_large.rule is FitRule.TOO_LARGE
    why = "node n: its largest GPU has 15 GiB; the pod needs 99 GiB on one GPU"
    assert (too_large.text, ledger.booking("p")) == (why, None)


def test_a_pod_is_bound_once() -> None:
    ledger = share_node()
    verdict_on(ledger, pod("p", mem=4))
    assert verdict_on(ledger, pod("p", mem=4)) is None
    elsewhere = verdict_on(ledger, pod("p", mem=4), "m")
    assert isinstance(elsewhere, Refusal)
    assert elsewhere.rule is BindRule.BOUND_ELSEWHERE
    assert elsewhere.text == "pod default/p already has GPUs of node n"


@pytest.mark.requirement("M13")
def test_a_pod_of_a_gang_waits_for_the_first_one_or_is_told_of_it() -> None:
    ledger, first, second = share_node(), holding(member("a"), 0), holding(member("b"), 1)
    ledger.apply_pod(first)
    ledger.apply_pod(second)
    assert [waits_for_first(ledger, uid) for uid in ("a", "b", "gone")] == [False, True, False]
    told = verdict_on(ledger, second)
    assert isinstance(told, Refusal)
    assert told.rule is ReservationRule.FIRST_NOT_BOUND
    assert told.text == "node n: pod default/a of its gang must be bound first, and is not bound yet"
    binding = binding_on(ledger, first)
    assert (binding.plan, binding.gpus) == ("g/1", "GPU 0 (10 GiB)")


@pytest.mark.requirement("B1")
def test_the_watch_is_newer_than_a_reading_that_began_before() -> None:
    ledger, asking = share_node(), pod("p", mem=4)
    binding = binding_on(ledger, asking)
    bound = pod("p", mem=4, node="n", annotations=binding.body.metadata.annotations)
    assert binding.is_executed(bound)
    assert not binding.is_executed(pod("p", mem=4, node="elsewhere", annotations=bound.metadata.annotations))
    before = ledger.booking("p")
    ledger.apply_pod(bound)
    by_watch = ledger.booking("p")
    pod_was_read(ledger, "p", before, pod("p", mem=4, node="elsewhere"), 9.0)
    assert ledger.booking("p") is by_watch
    pod_was_read(ledger, "p", by_watch, None, 9.0)
    assert ledger.booking("p") is None


@pytest.mark.requirement("M13")
def test_what_a_large_plan_costs_each_filter_is_bounded() -> None:
    """The first pod waits for all reservations of the plan, each other one for its own."""

    def costs(nodes: int) -> int:
        size = 8 * nodes
        ledger = ledger_of(*(gpu_node(f"n{i}", mode="cgpu") for i in range(nodes)), configuration=GANGS)
        pods = []
        for i in range(size):
            shares = (share(f"GPU-n{i % nodes}-0", 1024),)
            allocation = Allocation(shares, {"main": shares}, 1024, mode="cgpu")
            hold = Reservation("g/1", size, size, f"n{i % nodes}", LATER, allocation, first=i == 0)
            asking = member(f"p{i}", 1, size=size)
            notes = {RESERVATION_ANNOTATION: encode_reservation(hold)}
            meta = msgspec.structs.replace(asking.metadata, annotations=notes)
            pods.append(msgspec.structs.replace(asking, metadata=meta))
            ledger.apply_pod(pods[-1])
        assert [reserved_node(ledger, each, 0) for each in pods[:3]] == ["n0", "n1", "n2"]
        book(ledger, "thief", "n2", share("GPU-n2-0", GIB15))
        assert [isinstance(reserved_node(ledger, each, 0), Refusal) for each in pods[:3]] == [True, False, True]
        ledger.remove_pod("thief")
        assert reserved_node(ledger, pods[0], 0) == "n0"
        ledger.remove_node("n3")
        assert isinstance(reserved_node(ledger, pods[0], 0), Refusal)
        return calls(lambda: reserved_node(ledger, pods[1], 0))

    assert costs(40) == costs(4)
