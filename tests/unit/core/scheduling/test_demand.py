"""What pods ask for, learnt as they come: a sane start, forgetting, a bound."""

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.affinity import Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import LEGACY_MODEL_LABEL, MODEL_LABEL
from gputile.core.devices.request import parse_request
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.prices import Demand, prices
from gputile.core.scheduling import demand as learning
from gputile.core.scheduling.demand import FIRST_DUE, DemandEstimator, DemandTracker, generic, wanted_models
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from tests.conftest import examples
from tests.fakes.corebuilders import gpu_node, pod

ANY: frozenset[str] = frozenset()


def seen(estimator: DemandEstimator) -> dict[tuple[int, int, int], float]:
    found = estimator.demand()
    keys = zip(found.gpus.tolist(), found.milli.tolist(), found.cpu.tolist(), strict=True)
    return dict(zip(keys, found.weight.tolist(), strict=True))


@pytest.mark.requirement("B3")
def test_before_the_first_pod_prices_are_sane() -> None:
    found = prices(DemandEstimator(generic(12000, 8)).demand())
    assert found.value[[0, 250, 500, 1000]].tolist() == pytest.approx([0, 0.25, 0.5, 1])
    assert (np.diff(found.value) >= 0).all()
    assert {need.gpus for need in found.needs} == {8}


@pytest.mark.requirement("B3")
def test_pods_without_gpus_alone_change_no_price() -> None:
    estimator = DemandEstimator(generic(12000, 4))
    before = prices(estimator.demand()).value
    for _ in range(1000):
        estimator.observe(0, 0, 4000, ANY)
    assert prices(estimator.demand()).value.tolist() == pytest.approx(before.tolist())


@pytest.mark.requirement("B3")
def test_what_was_seen_long_ago_counts_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "HALF_LIFE", 100.0)
    estimator = DemandEstimator(generic(12000, 4))
    for milli in (300, 700):
        for _ in range(100):
            estimator.observe(1, milli, 1000, ANY)
    weights = seen(estimator)
    assert weights[1, 300, 1000] == pytest.approx(weights[1, 700, 1000] / 2)


@pytest.mark.requirement("B3")
def test_memory_is_learnt_from_gpu_pods_that_ask_for_it() -> None:
    estimator = DemandEstimator(generic(12000, 4))
    assert estimator.demand().cpu_per_mib == 0
    estimator.observe(0, 0, 9000, ANY, 1)
    estimator.observe(1, 500, 7000, ANY)
    assert estimator.demand().cpu_per_mib == 0
    for _ in range(10):
        estimator.observe(1, 500, 2000, ANY, 8000)
    assert estimator.demand().cpu_per_mib == pytest.approx(0.25)


@pytest.mark.requirement("B3")
@settings(deadline=None, max_examples=examples(20))
@given(st.integers(1, 10), st.floats(10, 1000))
def test_many_kinds_and_many_pods_stay_bounded(seed: int, half_life: float) -> None:
    """Rare kinds go, common ones stay, and weights stay finite however many pods came."""
    kinds = np.random.default_rng(seed).integers(1, 1_000_000, 3000).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "HALF_LIFE", half_life)
        estimator = DemandEstimator(generic(12000, 4))
        for cpu in kinds:
            estimator.observe(1, 500, cpu, ANY, 100)
            estimator.observe(1, 1000, 8000, ANY, 100)
    weights = seen(estimator)
    assert len(weights) <= 1024 + 1
    assert np.isfinite(list(weights.values())).all()
    assert max(weights, key=lambda kind: weights[kind]) == (1, 1000, 8000)
    assert np.isfinite(estimator.demand().cpu_per_mib)


@pytest.mark.requirement("B3")
def test_a_cluster_without_gpus_has_a_start_too() -> None:
    found: Demand = generic(0.0, 1)
    assert (found.cpu == 0).all()
    assert prices(found).least_cpu == 0


PACKING = Configuration(placement="packing")


def cluster() -> Ledger:
    ledger = Ledger(PACKING)
    for name in ("a", "b"):
        ledger.apply_node(gpu_node(name, mode="cgpu", allocatable={"cpu": "32"}))
    return ledger


def weight_of(log: DemandTracker, milli: int) -> float:
    demand = log.demand()
    return float(demand.weight[demand.milli == milli].sum())


def test_a_pod_counts_once_however_often_it_asks() -> None:
    log, asking = DemandTracker(cluster()), pod("p", mem=5)
    request = parse_request(asking, 1024)
    before = weight_of(log, 334)
    for _ in range(5):
        log.observe(asking, request)
    assert weight_of(log, 334) == pytest.approx(before + 1, abs=0.01)


def test_prices_are_due_when_enough_pods_came_and_then_ever_more_seldom() -> None:
    log, at = DemandTracker(cluster()), []
    for i in range(400):
        asking = pod(f"p{i}", mem=5)
        log.observe(asking, parse_request(asking, 1024))
        if log.due():
            at.append(i + 1)
    assert at[0] == FIRST_DUE
    assert (np.diff(np.diff(at)) >= 0).all()


def test_pods_that_are_there_already_are_learnt_from() -> None:
    ledger = cluster()
    engine = PlacementEngine(ledger)
    for i in range(6):
        asking = pod(f"p{i}", mem=5)
        request = parse_request(asking, 1024)
        assert request is not None
        decision = engine.decide(request, "a", 0)
        assert isinstance(decision, Decision)
        meta = msgspec.structs.replace(asking.metadata, annotations=decision.annotations(asking))
        spec = msgspec.structs.replace(asking.spec, node_name="a")
        ledger.apply_pod(Pod(metadata=meta, spec=spec))
    assert weight_of(DemandTracker(ledger), 334) == pytest.approx(6, abs=0.01)


@pytest.mark.requirement("B3")
def test_new_prices_score_all_nodes_anew() -> None:
    """A kept score is that of the prices in force."""
    ledger = cluster()
    engine = PlacementEngine(ledger)
    request = parse_request(pod("p", mem=5), 1024)
    assert request is not None
    assert engine.demand is not None
    first = engine.rank(request, ["a", "b"])
    for i in range(60):
        third = pod(f"q{i}", mem=5)
        engine.demand.observe(third, parse_request(third, 1024))
    engine.reprice(prices(engine.demand.demand()))
    fresh = PlacementEngine(ledger)
    fresh.reprice(prices(engine.demand.demand()))
    assert engine.scores(request.shape, request.host).tolist() == fresh.scores(request.shape, request.host).tolist()
    assert sorted(first) == [9, 10]


@pytest.mark.requirement("C2")
@pytest.mark.parametrize(
    ("selector", "values", "models"),
    [
        ({}, None, set()),
        ({MODEL_LABEL: "T4"}, None, {"T4"}),
        ({}, ("T4", "V100"), {"T4", "V100"}),
        ({MODEL_LABEL: "T4"}, ("T4", "V100"), {"T4"}),
        ({"zone": "a"}, None, set()),
    ],
)
def test_the_models_that_a_pod_admits(
    selector: Mapping[str, str], values: tuple[str, ...] | None, models: set[str]
) -> None:
    """The selector, and the one term of the required affinity."""
    asking = pod("p", mem=1)
    affinity = None
    if values is not None:
        rule = NodeSelectorRequirement(key=LEGACY_MODEL_LABEL, operator="In", values=values)
        terms = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(rule,)),))
        affinity = Affinity(node_affinity=NodeAffinity(required=terms))
    spec = msgspec.structs.replace(asking.spec, node_selector=dict(selector), affinity=affinity)
    assert wanted_models(msgspec.structs.replace(asking, spec=spec)) == models
