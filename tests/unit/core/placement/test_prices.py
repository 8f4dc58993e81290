"""Prices of shares: the linear program and the knapsack against brute force."""

from itertools import product

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.core.placement.prices import Demand, idle_cpu, prices, remnant_values, share_prices
from tests.conftest import examples

pytestmark = pytest.mark.requirement("B3")

ANY: frozenset[str] = frozenset()


def demand(*kinds: tuple[int, int, int, float], models: tuple[frozenset[str], ...] = ()) -> Demand:
    """Kinds are (GPUs, thousandths, milli-CPU, weight)."""
    gpus, milli, cpu = np.array([kind[:3] for kind in kinds], np.int64).T
    return Demand(gpus, milli, cpu, models or (ANY,) * len(kinds), np.array([kind[3] for kind in kinds]))


def patterns(sizes: list[int]) -> list[tuple[int, ...]]:
    """Every multiset of sizes that fits one GPU, the empty one too."""
    counts = product(*(range(1000 // size + 1) for size in sizes))
    return [each for each in counts if sum(n * size for n, size in zip(each, sizes, strict=True)) <= 1000]


def demand_served_by_brute_force(sizes: list[int], rates: list[float]) -> float:
    """The most of the demand that one GPU can serve, with every pattern in the program at once."""
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    model.setOptionValue("output_flag", False)
    theta = model.addVariable(0, 1e9, obj=-1)
    used = [model.addVariable(0, 1) for _ in patterns(sizes)]
    model.addConstr(sum(used) <= 1)
    for i, rate in enumerate(rates):
        served = sum(each[i] * y for each, y in zip(patterns(sizes), used, strict=True) if each[i])
        model.addConstr(served - rate * theta >= 0)
    model.run()
    return float(model.getSolution().col_value[0])


shares = st.lists(
    st.sampled_from([180, 220, 250, 300, 340, 470, 530, 650, 810, 1000]), min_size=1, max_size=4, unique=True
)


@settings(max_examples=examples(60), deadline=None)
@given(shares, st.data())
def test_prices_are_the_duals_of_the_whole_program(sizes: list[int], data: st.DataObject) -> None:
    sizes.sort()
    rates = data.draw(st.lists(st.floats(0.05, 2), min_size=len(sizes), max_size=len(sizes)))
    found = share_prices(np.array(sizes), np.array(rates))
    for pattern in patterns(sizes):
        assert np.dot(pattern, found) <= 1 + 1e-6, "no GPU serves more than a GPU is worth"
    assert np.dot(found, rates) == pytest.approx(1 / demand_served_by_brute_force(sizes, rates), rel=1e-6)


def best_by_brute_force(sizes: list[int], values: list[float], capacity: int) -> float:
    fitting = [(s, v) for s, v in zip(sizes, values, strict=True) if s <= capacity]
    return max((v + best_by_brute_force(sizes, values, capacity - s) for s, v in fitting), default=0.0)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(150, 1000), st.floats(0, 1)), min_size=1, max_size=3, unique_by=lambda each: each[0]
    ),
    st.integers(0, 999),
)
def test_remnants_are_worth_the_best_that_fits(priced: list[tuple[int, float]], remnant: int) -> None:
    sizes, values = [size for size, _ in priced], [value for _, value in priced]
    found = remnant_values(np.array(sizes), np.array(values))
    assert found[0] == 0
    assert found[1000] >= 1
    assert (np.diff(found) >= 0).all(), "more is never worth less"
    assert found[remnant] == pytest.approx(best_by_brute_force(sizes, values, remnant))


def test_idle_cpu_is_what_no_mix_of_the_usual_pods_takes() -> None:
    """Pods of 32 and 12 cores: 40 cores hold 36 (three of 12), 44 hold 44; the pod of 1 core is too rare to count."""
    idle = idle_cpu(np.array([32000, 12000, 1000]), np.array([50.0, 50.0, 1.0]))
    assert idle[[0, 110, 120, 400, 440]].tolist() == [0, 11000, 0, 4000, 0]
    assert idle_cpu(np.zeros(0, np.int64), np.zeros(0)).size == 0


def test_a_remnant_earns_little_where_few_pods_have_cpu_enough() -> None:
    """Of ten pods that want a half, one gets by with 4 cores: where there are no more, a quarter is earned."""
    found = prices(demand((1, 500, 4000, 1.0), (1, 500, 8000, 9.0), (1, 100, 1000, 1.0), (2, 1000, 500, 5.0)))
    assert found.cpu_asked.tolist() == [1000, 4000, 8000], "pods of several GPUs wait for no single one"
    below, light, usual, plenty = found.unused
    assert below[[500, 1000]].tolist() == pytest.approx([0.5, 1])
    assert light[[100, 500]].tolist() == pytest.approx([0, 0.5]), "a tenth of a GPU uses a half badly"
    assert usual[[500, 1000]].tolist() == pytest.approx([0.5 * 0.75, 0.75])
    assert not plenty.any()


@given(
    st.lists(
        st.tuples(st.integers(1, 2), st.integers(1, 1000), st.integers(0, 32000), st.floats(0.01, 10)),
        min_size=1,
        max_size=8,
    )
)
def test_no_remnant_loses_more_than_it_is_worth_nor_with_more_cpu(kinds: list[tuple[int, int, int, float]]) -> None:
    found = prices(demand(*kinds))
    assert found.unused.shape == (len(found.cpu_asked) + 1, 1001)
    assert ((found.unused >= 0) & (found.unused <= found.value + 1e-9)).all()
    assert (np.diff(found.unused, axis=0) <= 1e-9).all()
    assert found.unused[-1] == pytest.approx(0)


def test_prices_put_the_demand_into_gpus() -> None:
    found = prices(demand((1, 1000, 8000, 6.0), (1, 500, 2000, 4.0), (2, 1000, 30000, 1.0), (0, 0, 5000, 10.0)))
    assert found.value[[499, 500, 999, 1000]].tolist() == pytest.approx([0, 0.5, 0.5, 1])
    assert found.density.tolist() == pytest.approx([4000, 8000, 15000])
    assert found.portion.tolist() == pytest.approx([0.2, 0.6, 0.2])
    assert found.cpu_per_gpu == pytest.approx((48 + 8 + 30 + 50) * 100)
    assert found.cpu_without_gpu == pytest.approx(5000)
    assert found.mean_cpu == pytest.approx(136000 / 21)


def test_needs_count_demand_that_is_harder_still() -> None:
    """A pair of GPUs is needed by pods of two and of four; T4 alone by those that allow nothing else."""
    models = (ANY, ANY, frozenset({"T4"}), frozenset({"T4", "A10"}))
    kinds = demand((2, 1000, 0, 2.0), (4, 1000, 0, 1.0), (1, 1000, 0, 1.0), (1, 1000, 0, 1.0), models=models)
    shares = {(need.gpus, need.models): need.share * 10 for need in prices(kinds).needs}
    assert shares[4, ANY] == pytest.approx(4)
    assert shares[2, ANY] == pytest.approx(4 + 2), "a pod of four takes two places for pairs, but counts for one"
    assert shares[1, frozenset({"T4"})] == pytest.approx(1)
    assert shares[1, frozenset({"T4", "A10"})] == pytest.approx(2)


def test_a_demand_without_gpus_has_no_prices() -> None:
    with pytest.raises(ValueError, match="without GPU pods"):
        prices(demand((0, 0, 1000, 1.0)))
