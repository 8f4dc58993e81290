"""Which node is the best for a pod with claims."""

from typing import Any

import pytest

from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.pod_filter import filter_pod, rank_pod_with_claims
from tests.fakes.claimbuilders import claim, pod_with_claims, result
from tests.fakes.corebuilders import gpu_node, ledger_of, pod

pytestmark = pytest.mark.requirement("B8")


def ranks(ledger: Ledger, *names: str, **asked: Any) -> list[int]:
    ledger.apply_claim(claim("mine", **asked))
    return rank_pod_with_claims(PlacementEngine(ledger), pod_with_claims("p", "mine"), names)[0]


def test_a_node_is_ranked_by_the_first_gpu_that_fits_and_not_by_the_best() -> None:
    """On node a the share would go to an empty GPU, although another would be filled by it."""
    ledger = ledger_of(*(gpu_node(name, mode="cgpu", sizes=(8192, 8192), claims=True) for name in ("a", "b")))
    ledger.apply_claim(claim("x", result("a", 1, memory="4Gi"), memory="4Gi"))
    ledger.apply_claim(claim("y", result("b", 0, memory="4Gi"), memory="4Gi"))
    assert ranks(ledger, "a", "b", memory="4Gi") == [8, 10]


def test_without_a_request_for_compute_a_share_takes_all_of_it_where_the_node_counts_it() -> None:
    ledger = ledger_of(
        gpu_node("memory", mode="cgpu", sizes=(8192,), claims=True),
        gpu_node("both", mode="core_mem", sizes=(8192,), claims=True),
        gpu_node("used", mode="core_mem", sizes=(8192,), claims=True),
    )
    ledger.apply_claim(claim("x", result("used", 0, memory="1Gi", cores="5"), memory="1Gi"))
    found = ranks(ledger, "memory", "both", "used", memory="4Gi")
    assert found[2] == 0
    assert min(found[:2]) >= 9


def test_extended_resources_and_claims_are_served_by_different_nodes() -> None:
    ledger = ledger_of(gpu_node("a", mode="cgpu"), gpu_node("b", mode="cgpu", claims=True), gpu_node("c", claims=True))
    assert ranks(ledger, "a", "b", "c", memory="4Gi") == [0, 10, 0]
    found = filter_pod(PlacementEngine(ledger), pod("p", mem=4), ["a", "b"], 0).nodes
    assert found.feasible == ["a"]
    assert found.unresolvable == {"b": "b: it offers its GPUs by claims; the pod requests them by extended resources"}
    whole = filter_pod(PlacementEngine(ledger), pod("q", asks={"nvidia.com/gpu": 1}), ["c"], 0).nodes
    assert whole.feasible == []


@pytest.mark.parametrize("asked", [{"memory": "0"}, {"devices": "gputile-gpu", "request": {"adminAccess": True}}])
def test_a_claim_that_breaks_a_rule_is_left_to_kube_scheduler_and_told_of(asked: dict[str, Any]) -> None:
    ledger = ledger_of(gpu_node("a", mode="cgpu", claims=True))
    assert ranks(ledger, "a", **asked) == [0]
    _, invalid = rank_pod_with_claims(PlacementEngine(ledger), pod_with_claims("p", "mine"), ["a"])
    assert invalid.startswith("claim mine: ")


def test_a_claim_that_is_allocated_asks_for_nothing_more() -> None:
    ledger = ledger_of(*(gpu_node(name, mode="cgpu", claims=True) for name in ("a", "b")))
    ledger.apply_claim(claim("mine", result("a", 1, memory="4Gi"), memory="4Gi"))
    engine = PlacementEngine(ledger)
    assert rank_pod_with_claims(engine, pod_with_claims("p", "mine", "unknown"), ["a", "b"]) == ([0, 0], "")
