"""Packing on the ledger's arrays: what fits, which GPUs, and what nodes are compared by."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import Configuration
from gputile.core.devices.request import Request, RequestKind
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES, HostResources
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import ServingMode
from gputile.core.placement import vectorized
from gputile.core.placement.fit import choose_gpus, refusal
from gputile.core.placement.packing_scores import (
    FULLNESS_STEPS,
    PackingState,
    Trial,
    build,
    remnants,
    score,
    scores,
    usable_cpu,
)
from gputile.core.placement.prices import WHOLE_GPU, prices, thousandths
from gputile.core.scheduling.demand import generic
from tests.fakes.corebuilders import gpu_node, ledger_of, pod, request_of
from tests.unit.core.placement.strategies import ledgers, requests

PACKING = Configuration(placement="packing")


def market_of(ledger: Ledger, cpu_per_mib: float = 0.0) -> PackingState:
    return build(ledger.node_arrays, prices(replace(generic(16_000.0, 4), cpu_per_mib=cpu_per_mib)))


@st.composite
def packed(draw: st.DrawFn) -> Ledger:
    """A ledger as any other, whose nodes choose by what remnants are worth unless their label says otherwise."""
    ledger = draw(ledgers())
    arrays = ledger.node_arrays
    for row, _ in ledger.nodes():
        arrays.packed[row] = not arrays.spread[row] and draw(st.booleans())
        arrays.cpu[row] = draw(st.sampled_from([-500, 0, 3000, 64_000]))
        arrays.host_mib[row] = draw(st.sampled_from([-1, 0, 9000, 500_000]))
    return ledger


@pytest.mark.requirement("B3")
@given(packed(), requests(), st.sampled_from([0, 1000, 8000]), st.sampled_from([0, 4000]), st.sampled_from([0, 0.25]))
def test_a_node_is_judged_by_the_gpus_that_the_pod_would_get(
    ledger: Ledger, request: Request, cpu: int, mib: int, cpu_per_mib: float
) -> None:
    """What ranks a node is what its placement really costs; and it fits where the other policies say so."""
    shape, arrays, packing_state = request.shape, ledger.node_arrays, market_of(ledger, cpu_per_mib)
    host = HostResources(cpu, mib)
    everywhere = scores(arrays, shape, host, slice(0, arrays.rows), packing_state)
    rows = np.arange(arrays.rows)
    assert (scores(arrays, shape, host, rows, packing_state) == everywhere).all()
    for row, node_info in ledger.nodes():
        node = ledger.state(node_info.name)
        assert node is not None
        fits = refusal(node, shape) is None
        assert fits == (everywhere[row] != vectorized.UNFIT)
        if not fits:
            continue
        chosen = choose_gpus(arrays, row, node, shape, packing_state.prices.value)
        if node.serving_mode in (
            ServingMode.OTHER_PLUGIN,
            ServingMode.SLICED,
        ):  # after those that give a GPU to the pod alone
            assert everywhere[row] == 0
            continue
        line = np.array([row])
        free = remnants(arrays, line)
        positions = [node.gpus.index(gpu) for gpu in chosen]
        totals = arrays.total[line].astype(np.int64)
        taken = (
            thousandths(shape.mib, shape.percent, totals)
            if shape.kind is RequestKind.SHARED
            else np.full_like(totals, WHOLE_GPU)
        )
        later = np.full_like(free, -1)
        later[0, positions] = np.maximum(free - taken, 0)[0, positions]
        left, memory = np.maximum(arrays.cpu[line], cpu), np.maximum(arrays.host_mib[line], mib)
        usable = usable_cpu(left, memory, cpu_per_mib)
        taken_cpu = usable - usable_cpu(left - cpu, memory - mib, cpu_per_mib)
        trial = Trial(shape.gpus, host, free, later)
        cost = score(packing_state, trial, usable, taken_cpu, packing_state.hosts[:, line])
        expected = round((min(max(float(cost[0]) + shape.gpus, -4.0), 4.0) + 4.0) * 2500)
        found = int(everywhere[row]) // (1 if shape.kind is RequestKind.SHARED else FULLNESS_STEPS)
        assert abs(found - expected) <= 1


@given(packed())
def test_remnants_are_thousandths_of_what_can_still_be_given(ledger: Ledger) -> None:
    rows = np.arange(ledger.node_arrays.rows)
    left = remnants(ledger.node_arrays, rows)
    assert ((left >= 0) & (left <= WHOLE_GPU)).all()
    assert not left[~ledger.node_arrays.usable].any()


@pytest.mark.requirement("M9")
def test_the_label_packing_means_binpack_where_the_cluster_goes_by_something_else() -> None:
    """What remnants are worth is learnt for the whole cluster or not at all."""
    for configuration, placement in ((Configuration(), "binpack"), (PACKING, "packing")):
        ledger = Ledger(configuration)
        ledger.apply_node(gpu_node("n", mode="cgpu", placement="packing"))
        node_info = ledger.node_info(ledger.row_of["n"])
        assert node_info is not None
        assert node_info.placement == placement


def test_a_node_that_comes_after_the_prices_is_scored_all_the_same() -> None:
    ledger = ledger_of(gpu_node("n0", mode="cgpu"))
    packing_state = market_of(ledger)
    for i in range(1, 40):
        ledger.apply_node(gpu_node(f"n{i}", mode="cgpu"))
    shape = request_of(pod("p", mem=4)).shape
    found = scores(ledger.node_arrays, shape, NO_HOST_RESOURCES, slice(0, ledger.node_arrays.rows), packing_state)
    assert (found[[ledger.row_of[f"n{i}"] for i in range(40)]] != vectorized.UNFIT).all()
