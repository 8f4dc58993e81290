"""What pods ask for, learnt as they come: a sane start, forgetting, a bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.core.placement.prices import Demand, prices
from gputile.core.scheduling import demand as learning
from gputile.core.scheduling.demand import DemandEstimator, generic
from tests.examples import examples

pytestmark = pytest.mark.requirement("B3")

ANY: frozenset[str] = frozenset()


def seen(estimator: DemandEstimator) -> dict[tuple[int, int, int], float]:
    found = estimator.demand()
    keys = zip(found.gpus.tolist(), found.milli.tolist(), found.cpu.tolist(), strict=True)
    return dict(zip(keys, found.weight.tolist(), strict=True))


def test_before_the_first_pod_prices_are_sane() -> None:
    found = prices(DemandEstimator(generic(12000, 8)).demand())
    assert found.value[[0, 250, 500, 1000]].tolist() == pytest.approx([0, 0.25, 0.5, 1])
    assert (np.diff(found.value) >= 0).all()
    assert {need.gpus for need in found.needs} == {8}


def test_pods_without_gpus_alone_change_no_price() -> None:
    estimator = DemandEstimator(generic(12000, 4))
    before = prices(estimator.demand()).value
    for _ in range(1000):
        estimator.observe(0, 0, 4000, ANY)
    assert prices(estimator.demand()).value.tolist() == pytest.approx(before.tolist())


def test_what_was_seen_long_ago_counts_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "HALF_LIFE", 100.0)
    estimator = DemandEstimator(generic(12000, 4))
    for milli in (300, 700):
        for _ in range(100):
            estimator.observe(1, milli, 1000, ANY)
    weights = seen(estimator)
    assert weights[1, 300, 1000] == pytest.approx(weights[1, 700, 1000] / 2)


def test_memory_is_learnt_from_gpu_pods_that_ask_for_it() -> None:
    estimator = DemandEstimator(generic(12000, 4))
    assert estimator.demand().cpu_per_mib == 0
    estimator.observe(0, 0, 9000, ANY, 1)
    estimator.observe(1, 500, 7000, ANY)
    assert estimator.demand().cpu_per_mib == 0
    for _ in range(10):
        estimator.observe(1, 500, 2000, ANY, 8000)
    assert estimator.demand().cpu_per_mib == pytest.approx(0.25)


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


def test_a_cluster_without_gpus_has_a_start_too() -> None:
    found: Demand = generic(0.0, 1)
    assert (found.cpu == 0).all()
    assert prices(found).least_cpu == 0
