"""The best-connected GPUs, against every possible set."""

from collections.abc import Callable
from itertools import combinations
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.core.placement.fit import Matrix, best_set
from tests.conftest import examples

pytestmark = pytest.mark.requirement("T2")

Gpus = tuple[int, ...]


def smallest(bandwidth: Matrix, gpus: Gpus) -> float:
    return min((bandwidth[a][b] for a, b in combinations(gpus, 2)), default=inf)


def by_trying_all(bandwidth: Matrix, free: Gpus, size: int) -> Gpus:
    def worse(chosen: Gpus) -> tuple[float, float, float, Gpus]:
        rest = tuple(gpu for gpu in free if gpu not in chosen)
        left = max(smallest(bandwidth, some) for some in combinations(rest, min(size, len(rest))))
        return -smallest(bandwidth, chosen), -left, -sum(bandwidth[a][b] for a, b in combinations(rest, 2)), chosen

    return min(combinations(free, size), key=worse)


def matrix(size: int, link: Callable[[int, int], float]) -> Matrix:
    return tuple(tuple(0.0 if i == j else float(link(min(i, j), max(i, j))) for j in range(size)) for i in range(size))


@st.composite
def searches(draw: st.DrawFn) -> tuple[Matrix, Gpus, int]:
    size = draw(st.integers(1, 8))
    speeds = draw(st.sampled_from([[10, 50], [0, 10, 25, 50], list(range(40))]))
    links = {pair: draw(st.sampled_from(speeds)) for pair in combinations(range(size), 2)}
    free = tuple(sorted(draw(st.sets(st.integers(0, size - 1), min_size=1))))
    return matrix(size, lambda a, b: links[a, b]), free, draw(st.integers(1, len(free)))


@pytest.mark.requirement("T2")
@settings(max_examples=examples(300))
@given(searches())
def test_the_best_set_is_the_best_of_all_sets_t2(search: tuple[Matrix, Gpus, int]) -> None:
    assert best_set(*search) == by_trying_all(*search)


def test_without_a_matrix_the_first_gpus_are_as_good_as_any() -> None:
    assert best_set((), (1, 4, 5), 2) == (1, 4)


def cube(a: int, b: int) -> float:
    return 50 if (a ^ b).bit_count() == 1 else 10


def test_of_16_gpus_the_best_are_found_and_of_more_the_first() -> None:
    assert best_set(matrix(16, cube), tuple(range(16)), 2) == (0, 1)
    assert best_set(matrix(17, lambda a, b: a * b), tuple(range(17)), 2) == (0, 1)
    assert best_set(matrix(16, lambda a, b: a * b), tuple(range(16)), 2) == (14, 15)
