"""The ledger books what kube-scheduler has allocated to claims, whatever order the news comes in."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node
from gputile.api.resource_claims import ResourceClaim
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import ServingMode
from gputile.core.placement.free_memory import overallocated_gpus
from tests.fakes.claimbuilders import claim, result
from tests.fakes.corebuilders import gpu_node, ledger_of
from tests.stateful.ledgercheck import image, unused_rows_are_empty

pytestmark = pytest.mark.requirement("B8")


def booked(ledger: Ledger, found: ResourceClaim) -> Booking:
    ledger.apply_claim(found)
    booking = ledger.booking(found.metadata.uid)
    assert booking is not None
    return booking


def test_an_allocation_is_booked_for_the_pod_that_the_claim_is_reserved_for() -> None:
    ledger = ledger_of(gpu_node("n", mode="core_mem", claims=True))
    booking = booked(ledger, claim("c", result("n", 1, memory="3Gi", cores="20"), pods=["trainer"], memory="3Gi"))
    assert (booking.uid, booking.key, booking.node) == ("uid-c", "default/trainer", "n")
    assert [(share.uuid, share.mib, share.percent) for share in booking.gpus] == [("GPU-n-1", 3072, 20)]
    assert not booking.whole
    assert ledger.node_arrays.used[ledger.row_of["n"], :4].tolist() == [0, 3072, 0, 0]


def test_two_shares_of_one_gpu_count_as_two_pods_of_it() -> None:
    """kube-scheduler counts them so: each result takes one of the capacity that says how many pods a GPU holds."""
    ledger = ledger_of(gpu_node("n", mode="cgpu", claims=True))
    booked(ledger, claim("c", result("n", 0, memory="1Gi"), result("n", 0, memory="2Gi"), memory="1Gi"))
    row = ledger.row_of["n"]
    assert (ledger.node_arrays.used[row, 0], ledger.node_arrays.pods[row, 0]) == (3072, 2)
    ledger.remove_claim("uid-c")
    assert (ledger.node_arrays.used[row, 0], ledger.node_arrays.pods[row, 0]) == (0, 0)


def test_a_device_without_a_share_is_a_whole_gpu() -> None:
    ledger = ledger_of(gpu_node("n", claims=True))
    booking = booked(ledger, claim("c", result("n", 2, whole=True), devices="gputile-gpu"))
    assert booking.whole
    assert [(share.index, share.mib, share.percent) for share in booking.gpus] == [(2, 15360, 100)]


@pytest.mark.parametrize("node_mode", ["cgpu", ""])
def test_an_unknown_device_closes_no_node_where_kube_scheduler_counts(node_mode: str) -> None:
    ledger = ledger_of(gpu_node("n", mode=node_mode, claims=True))
    booking = booked(ledger, claim("c", result("n", 9, memory="1Gi"), result("other", 0), memory="1Gi"))
    assert booking.allocation is None
    assert booking.problem == "it is allocated n/gpu-9, other/gpu-0, which node n does not have"
    assert ledger.node_arrays.serving_mode[ledger.row_of["n"]] != ServingMode.BLOCKED


def test_a_mig_instance_is_not_booked_as_one_by_extended_resources_is_not() -> None:
    """The inventory has whole GPUs only: `gputile inspect` would say that the node lacks the device."""
    ledger = ledger_of(gpu_node("n", claims=True))
    instance = result("n", 0, whole=True) | {"device": "gpu-1-mig-4c8e1f"}
    ledger.apply_claim(claim("c", instance, devices="small"))
    assert ledger.booking("uid-c") is None
    both = booked(ledger, claim("d", instance, result("n", 0, whole=True), devices="small"))
    assert [(share.index, share.mib) for share in both.gpus] == [(0, 15360)]


def test_who_looks_on_takes_nothing() -> None:
    ledger = ledger_of(gpu_node("n", mode="cgpu", claims=True))
    ledger.apply_claim(claim("c", result("n", 0) | {"adminAccess": True}, memory="1Gi"))
    assert ledger.booking("uid-c") is None


def test_a_claim_of_another_driver_is_none_of_ours() -> None:
    ledger = ledger_of(gpu_node("n", mode="cgpu", claims=True))
    other = result("n", 0, memory="1Gi") | {"driver": "nic.example.com"}
    ledger.apply_claim(claim("c", other, devices="nic"))
    assert "uid-c" not in ledger.claims
    assert ledger.booking("uid-c") is None


def test_a_forged_allocation_is_seen_as_over_allocated() -> None:
    ledger = ledger_of(gpu_node("n", mode="cgpu", claims=True))
    booked(ledger, claim("c", result("n", 0, memory="99Gi"), memory="1Gi"))
    assert overallocated_gpus(ledger) == 1


def test_a_claim_made_anew_under_its_name_is_the_one_that_pods_mean() -> None:
    ledger = ledger_of(gpu_node("n", mode="cgpu", claims=True))
    for uid in ("old", "new"):
        ledger.apply_claim(claim("c", uid=uid, memory="1Gi"))
    ledger.remove_claim("old")
    assert ledger.claims.uids() == ["new"]


def test_a_list_of_pods_says_nothing_of_claims() -> None:
    ledger = ledger_of(gpu_node("n", mode="cgpu", claims=True))
    booking = booked(ledger, claim("c", result("n", 0, memory="1Gi"), memory="1Gi"))
    ledger.replace_pods(())
    assert ledger.booking("uid-c") == booking


def nodes(name: str) -> st.SearchStrategy[Node]:
    """Node ``name``, which gives claims different GPUs from time to time."""
    return st.builds(
        gpu_node,
        st.just(name),
        mode=st.sampled_from(["cgpu", "core_mem", "mps", ""]),
        sizes=st.lists(st.sampled_from([15360, 4096]), max_size=3),
        claims=st.sampled_from([True, True, False]),
        unit_mib=st.sampled_from([0, 128]),
    )


def results() -> st.SearchStrategy[dict[str, object]]:
    return st.builds(
        result,
        st.sampled_from(["a", "b"]),
        st.integers(0, 3),
        whole=st.sampled_from([False, False, True]),
        memory=st.sampled_from(["1Gi", "6Gi", "x"]),
    )


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, Any]:
    kind = draw(st.sampled_from(["claim", "claim", "claim", "node", "gone", "list", "node gone"]))
    if kind == "node":
        return kind, draw(nodes(draw(st.sampled_from(["a", "b"]))))
    if kind == "node gone":
        return kind, draw(st.sampled_from(["a", "b"]))
    if kind == "gone":
        return kind, draw(st.sampled_from(["uid-1", "uid-2", "uid-3"]))
    made = st.builds(lambda found: claim("1", *found, memory="1Gi"), st.lists(results(), max_size=3))
    if kind == "list":
        return kind, (draw(st.lists(made, max_size=1)), draw(st.frozensets(st.just("uid-2"))))
    name = draw(st.sampled_from(["1", "2", "3"]))
    return kind, claim(name, *draw(st.lists(results(), max_size=3)), memory="1Gi")


@given(st.lists(changes(), max_size=20))
def test_a_ledger_that_saw_it_all_equals_one_that_sees_the_last_words(story: list[tuple[str, Any]]) -> None:
    ledger, claims, there = Ledger(Configuration()), dict[str, ResourceClaim](), dict[str, Node]()
    for change in story:
        match change:
            case "node", node:
                ledger.apply_node(node)
                there[node.metadata.name] = node
            case "node gone", name:
                ledger.remove_node(name)
                there.pop(name, None)
            case "claim", found:
                ledger.apply_claim(found)
                claims[found.metadata.uid] = found
            case "gone", uid:
                ledger.remove_claim(uid)
                claims.pop(uid, None)
            case "list", (listed, unreadable):
                ledger.replace_claims(listed, unreadable)
                claims = {uid: each for uid, each in claims.items() if uid in unreadable}
                claims |= {each.metadata.uid: each for each in listed}
    fresh = ledger_of(*there.values())
    for found in claims.values():
        fresh.apply_claim(found)
    assert image(ledger) == image(fresh)
    assert unused_rows_are_empty(ledger)
    assert image(ledger.snapshot()) == image(fresh)
    assert set(ledger.claims.uids()) == set(claims)
