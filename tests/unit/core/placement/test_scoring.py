"""The packing policy: where single pods go, and what must hold for every cluster."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.core.devices.inventory import model_number
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES
from gputile.core.placement.packing_scores import (
    PackingState,
    Trial,
    allowed,
    packing_state,
    score,
    usable_cpu,
    value_keys,
)
from gputile.core.placement.prices import Demand, prices, thousandths
from tests.conftest import examples
from tests.unit.core.placement.test_prices import ANY, demand

pytestmark = pytest.mark.requirement("B3")

T4 = frozenset({"T4"})


def look(
    wanted: Demand, cpu: list[int], free: list[list[int]], models: list[str]
) -> tuple[PackingState, npt.NDArray[np.bool_]]:
    total = float(sum(cpu)), float(np.count_nonzero(free))
    context = packing_state(prices(wanted), np.array(cpu), np.array(free), numbers(models), total)
    return context, context.hosts


def numbers(models: Iterable[str]) -> npt.NDArray[np.int64]:
    return np.array([model_number(model) for model in models], np.int64)


@dataclass(frozen=True)
class Ask:
    """A pod: ``milli`` thousandths of each of its GPUs, and ``cpu`` milli-CPU."""

    gpus: int
    milli: int
    cpu: int

    def trial(self, free: npt.NDArray[np.int64], later: npt.NDArray[np.int64]) -> Trial:
        return Trial(self.gpus, NO_HOST_RESOURCES, free, later)


def gpu_of(context: PackingState, free: list[int], milli: int) -> int:
    """Return the GPU of a node that the policy gives a pod with one: GPUs of 1000 MiB, of which ``free`` are free."""
    left = np.array([free])
    later = np.where(left >= milli, left - milli, -1)
    return int(value_keys(context.prices.value, left, later)[0].argmin())


def best(
    wanted: Demand, cpu: list[int], free: list[list[int]], ask: Ask, models: list[str] | None = None
) -> tuple[int, int]:
    """Return node and GPU for the pod: the first of the best."""
    context, hosts = look(wanted, cpu, free, models or ["A10"] * len(cpu))
    later = np.array(free) - ask.milli
    scores = score(context, ask.trial(np.array(free), later), np.array(cpu), ask.cpu, hosts)
    node = int(scores.argmax())
    return node, gpu_of(context, free[node], ask.milli) if ask.gpus == 1 else 0


HALVES_AND_THIRDS = demand((1, 500, 1000, 1.0), (1, 330, 1000, 1.0))


def test_a_share_goes_where_the_remnant_is_as_large_as_it() -> None:
    assert best(HALVES_AND_THIRDS, [64000] * 3, [[500], [330], [500]], Ask(1, 330, 1000)) == (1, 0)
    assert best(HALVES_AND_THIRDS, [64000], [[500, 330, 500]], Ask(1, 330, 1000)) == (0, 1)


def test_a_share_does_not_break_what_others_need() -> None:
    """A half on the room for two thirds leaves 0.17, which nobody asks for; on a whole GPU it leaves a half."""
    assert best(HALVES_AND_THIRDS, [64000] * 2, [[670], [1000]], Ask(1, 500, 1000)) == (1, 0)


def test_of_equal_gpus_the_fullest() -> None:
    """Halves: a GPU's last half and a whole GPU lose the same, and the opened one is finished first."""
    halves = demand((1, 500, 1000, 1.0))
    assert best(halves, [64000], [[1000, 500]], Ask(1, 500, 1000)) == (0, 1)
    for used in (0, 1):  # no other node's GPU is opened either, in whatever order the nodes come
        free = [[500 if i == used else 1000] for i in range(2)]
        assert best(halves, [64000] * 2, free, Ask(1, 500, 1000)) == (used, 0)


def test_on_a_small_cluster_one_pod_of_several_gpus_is_expected() -> None:
    """A 25th of the demand is for pods of four GPUs: of eight free GPUs less than one, but four or nothing is asked."""
    wanted = demand((1, 500, 1000, 192.0), (4, 1000, 1000, 1.0))
    assert best(wanted, [64000] * 2, [[1000] * 4, [1000, 1000, 1000, 0]], Ask(1, 500, 1000))[0] == 1


MIXED_CPU = demand((1, 1000, 4000, 1.0), (1, 1000, 40000, 1.0), (0, 0, 8000, 0.1))


def test_a_pod_that_needs_much_cpu_goes_where_there_is_much() -> None:
    rich_last = [48000, 160000], [[1000] * 4, [1000] * 4]
    assert best(MIXED_CPU, *rich_last, Ask(1, 1000, 40000))[0] == 1
    assert best(MIXED_CPU, [30000, 160000], rich_last[1], Ask(1, 1000, 4000))[0] == 0, (
        "and a light one where it is little"
    )


def test_a_remnant_keeps_the_cpu_of_one_pod() -> None:
    """Halves ask for 4 cores: with 3.9 a node's last half would serve none of them."""
    halves = demand((1, 500, 4000, 1.0), (0, 0, 8000, 0.5))
    nodes = [11900, 16000], [[500], [500]]
    assert best(halves, *nodes, Ask(0, 0, 8000))[0] == 1
    assert best(halves, [12000, 16000], nodes[1], Ask(0, 0, 8000))[0] == 0


def test_a_pod_without_gpus_takes_cpu_that_gpus_do_not_need() -> None:
    assert best(MIXED_CPU, [40000, 40000], [[1000, 1000], [0, 0]], Ask(0, 0, 8000))[0] == 1


def test_whole_nodes_are_kept_for_pods_that_need_them() -> None:
    """Two nodes of four GPUs, one of them begun: with pods of four to come, single ones go to the begun one."""
    wanted = demand((1, 1000, 1000, 2.0), (4, 1000, 4000, 1.0))
    assert best(wanted, [64000, 64000], [[1000] * 4, [1000, 1000, 1000, 0]], Ask(1, 1000, 1000))[0] == 1


def test_a_model_that_others_depend_on_is_spared() -> None:
    wanted = demand((1, 1000, 1000, 1.0), (1, 1000, 1000, 1.0), models=(ANY, T4))
    assert best(wanted, [64000] * 2, [[1000], [1000]], Ask(1, 1000, 1000), ["T4", "A10"])[0] == 1


@pytest.mark.requirement("U3", "M8")
def test_a_gpu_too_small_is_not_chosen() -> None:
    """A request in MiB is another share of each GPU; of memory and compute the larger share counts."""
    sizes = np.array([[16000, 80000], [24000, 0]])
    taken = thousandths(12000, 20, sizes)
    assert taken[0].tolist() == [750, 200]
    assert taken[1, 0] == 500
    assert taken[1, 1] > 1000
    assert thousandths(1, 55, np.array([16000])).tolist() == [550]
    free = np.array([[700, 1000], [1000, 0]])
    context, hosts = look(HALVES_AND_THIRDS, [64000, 64000], free.tolist(), ["A10", "A10"])
    later = free - taken
    only_the_fitting = np.array([[-1, later[0, 1]], [later[1, 0], -1]])
    both = [
        score(context, Ask(1, 0, 1000).trial(free, each), np.array([64000, 64000]), 1000, hosts).tolist()
        for each in (later, only_the_fitting)
    ]
    assert both[0] == both[1]


def test_cpu_counts_only_as_far_as_memory_goes() -> None:
    cpu, memory = np.array([8000, 8000]), np.array([1000, 100000])
    assert usable_cpu(cpu, memory, 0.5).tolist() == [500, 8000]
    assert usable_cpu(cpu, memory, 0.0).tolist() == [8000, 8000], "unknown: memory does not count"


kinds = st.lists(
    st.one_of(
        st.tuples(st.just(1), st.integers(50, 1000), st.integers(0, 32000), st.floats(0.1, 10)),
        st.tuples(st.integers(2, 4), st.just(1000), st.integers(0, 64000), st.floats(0.1, 10)),
        st.tuples(st.just(0), st.just(0), st.integers(1, 64000), st.floats(0.1, 10)),
    ),
    min_size=1,
    max_size=6,
).filter(lambda each: any(kind[0] for kind in each))
gpus = st.lists(st.integers(0, 1000), min_size=4, max_size=4)
some_nodes = st.lists(st.tuples(st.integers(0, 128000), gpus, st.sampled_from(["T4", "A10"])), min_size=1, max_size=6)
asks = st.one_of(
    st.builds(Ask, st.just(1), st.integers(1, 1000), st.integers(0, 32000)),
    st.builds(Ask, st.integers(2, 4), st.just(1000), st.integers(0, 32000)),
    st.builds(Ask, st.just(0), st.just(0), st.integers(0, 32000)),
)


def fits(node: tuple[int, list[int], str], ask: Ask) -> bool:
    return bool(node[0] >= ask.cpu) and sum(free >= ask.milli for free in node[1]) >= ask.gpus


@settings(deadline=None, max_examples=examples(150))
@given(kinds, some_nodes, asks, st.randoms(use_true_random=False))
def test_scores_of_every_cluster(
    wanted: list[tuple[int, int, int, float]], nodes: list[tuple[int, list[int], str]], ask: Ask, random: object
) -> None:
    """Finite; of a GPU that has room; and neither the nodes' order nor the GPUs' matters."""
    fitting = [node for node in nodes if fits(node, ask)]
    if not fitting:
        return
    models = [node[2] for node in nodes]
    context, _ = look(demand(*wanted), [node[0] for node in nodes], [node[1] for node in nodes], models)

    def scores(among: list[tuple[int, list[int], str]], *, chosen_only: bool = False) -> list[float]:
        cpu, free = np.array([node[0] for node in among]), np.array([node[1] for node in among])
        own = numbers(node[2] for node in among)
        hosts = np.array([allowed(need.models, own) for need, _ in context.needs], np.bool_).reshape(-1, len(among))
        later = free - ask.milli
        if ask.gpus == 1 and chosen_only:
            gpus = np.array([gpu_of(context, node[1], ask.milli) for node in among])
            later = np.where(np.arange(free.shape[1]) == gpus[:, None], later, -1)
        found: list[float] = score(context, ask.trial(free, later), cpu, ask.cpu, hosts).tolist()
        return found

    found = scores(fitting)
    assert np.isfinite(found).all()
    assert scores(fitting, chosen_only=True) == pytest.approx(found), "of the GPU that the pod gets"
    assert scores(fitting[::-1]) == pytest.approx(found[::-1])
    assert [scores([node])[0] for node in fitting] == pytest.approx(found), "a node's score is its own affair"
    if ask.gpus <= 1:
        turned = [(cpu, free[::-1], model) for cpu, free, model in fitting]
        assert scores(turned) == pytest.approx(found)


def test_what_was_learnt_can_be_weighed_by_hand() -> None:
    """Without any scarcity a pod costs the price of its share."""
    context, hosts = look(HALVES_AND_THIRDS, [10**6], [[1000, 500]], ["A10"])
    context = replace(context, needs=(), finish=0.0)
    free = np.array([[1000, 500]])
    found = score(context, Ask(1, 500, 1000).trial(free, free - 500), np.array([10**6]), 1000, hosts[:0])
    assert gpu_of(context, [1000, 500], 500) == 1
    assert found.tolist() == pytest.approx([-0.5])
