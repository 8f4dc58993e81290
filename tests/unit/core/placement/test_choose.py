"""Which GPUs a pod gets and how good nodes are; the array kernels say the same as the scalar rules."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.core.devices.request import Request
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import ServingMode
from gputile.core.ledger.snapshot import NodeState, node_state
from gputile.core.placement import choose, vectorized
from gputile.core.placement.choose import HIGHEST_BINPACK, choose_gpus, node_score
from gputile.core.placement.fit import fits, gpu_fits, refusal
from gputile.core.placement.fit_refusal import FitRule
from gputile.core.placement.vectorized import UNFIT
from tests.corebuilders import book, gpu_node, ledger_of, pod, request_of, share
from tests.examples import examples
from tests.unit.core.placement.strategies import ledgers, requests

GIB = 1024


def ledger_with(placement: str, used: Sequence[tuple[int, int]], sizes: Sequence[int], mode: str = "cgpu") -> Ledger:
    ledger = ledger_of(gpu_node(mode=mode, placement=placement, sizes=sizes))
    for gpu, (mib, percent) in enumerate(used):
        if mib:
            book(ledger, f"h{gpu}", "n", share(f"GPU-n-{gpu}", mib, percent))
    return ledger


def chosen(ledger: Ledger, units: int, count: int = 1, core: int = 0) -> list[int]:
    row = ledger.row_of["n"]
    node_info = ledger.node_info(row)
    assert node_info is not None
    limits = {"mem": units} | ({"core": core} if core else {})
    gpus = choose_gpus(node_state(ledger, row, node_info), request_of(pod(count=count, asks=limits)).shape, 1)
    return [gpu.gpu.index for gpu in gpus or ()]


V100 = [15 * GIB] * 3


@pytest.mark.requirement("M9")
@pytest.mark.parametrize(
    ("placement", "used", "sizes", "units", "count", "gpus"),
    [
        pytest.param("", [0, 2, 0], V100, 3, 1, [1], id="binpack is the default: the started GPU"),
        pytest.param("binpack", [2, 9, 4], V100, 3, 1, [1], id="the fullest that has room"),
        pytest.param("binpack", [2, 13, 4], V100, 3, 1, [2], id="the next when it is full"),
        pytest.param("binpack", [0, 0, 0], V100, 3, 1, [0], id="the first of equals"),
        pytest.param("binpack", [2, 9, 4], V100, 6, 2, [1, 2], id="the two fullest"),
        pytest.param("binpack", [0, 0, 0], [80 * GIB, 15 * GIB, 40 * GIB], 3, 1, [1], id="the smallest GPU"),
        pytest.param("spread", [2, 9, 4], V100, 3, 1, [0], id="the least used"),
        pytest.param("spread", [2, 0, 0], V100, 3, 1, [1], id="the first empty"),
        pytest.param("spread", [2, 9, 4], V100, 6, 2, [0, 2], id="the two least used"),
        pytest.param("spread", [10, 4, 4], [80 * GIB, 15 * GIB, 15 * GIB], 3, 1, [0], id="by fraction, not by MiB"),
    ],
)
def test_gpus_by_policy_m9(
    placement: str, used: list[int], sizes: list[int], units: int, count: int, gpus: list[int]
) -> None:
    ledger = ledger_with(placement, [(n * GIB, 0) for n in used], sizes)
    assert chosen(ledger, units, count) == gpus


@pytest.mark.requirement("M9")
@pytest.mark.parametrize(("placement", "gpu"), [("binpack", 1), ("spread", 0)])
def test_compute_decides_between_gpus_of_equal_memory_m9(placement: str, gpu: int) -> None:
    ledger = ledger_with(placement, [(GIB, 20), (GIB, 40)], V100[:2], mode="core_mem")
    assert chosen(ledger, 1, core=5) == [gpu]


def scores_of(ledger: Ledger, policy: str, **limits: int) -> dict[str, int | None]:
    shape = request_of(pod(asks=limits)).shape
    return {
        node_info.name: node_score(node_state(ledger, row, node_info), shape, 1, policy, NO_HOST_RESOURCES)
        for row, node_info in ledger.nodes()
    }


@pytest.mark.requirement("M9")
@pytest.mark.parametrize("policy", ["binpack", "spread"])
@pytest.mark.parametrize("placement", ["binpack", "spread"])
def test_a_lie_about_one_gpu_leaves_scores_in_range(placement: str, policy: str) -> None:
    score = scores_of(ledger_with(placement, [(2**24, 100)], V100), policy, mem=1)["n"]
    assert score is not None
    assert UNFIT < score <= choose.HIGHEST_BINPACK


@pytest.mark.requirement("M9")
@pytest.mark.parametrize("limits", [{"mem": 2}, {"nvidia.com/gpu": 1}])
@pytest.mark.parametrize("placement", ["binpack", "spread"])
def test_the_clusters_policy_tells_full_nodes_from_empty_ones(placement: str, limits: dict[str, int]) -> None:
    mode = "cgpu" if "mem" in limits else ""
    ledger = ledger_of(*(gpu_node(name, mode=mode, placement=placement) for name in ("bare", "full")))
    book(ledger, "h", "full", share("GPU-full-0", 8 * GIB))
    packed, spread = scores_of(ledger, "binpack", **limits), scores_of(ledger, "spread", **limits)
    if placement == "binpack" or "mem" not in limits:
        assert (packed["full"] or 0) > (packed["bare"] or 0)
        assert (spread["full"] or 0) < (spread["bare"] or 0)


@pytest.mark.requirement("M9")
def test_a_node_that_no_pod_fits_has_no_score() -> None:
    assert scores_of(ledger_with("", [], V100), "binpack", mem=16) == {"n": None}


@pytest.mark.requirement("G6")
def test_gpus_of_another_device_plugin_are_the_last_resort_g6() -> None:
    ledger = ledger_of(gpu_node(inventory="", allocatable={"nvidia.com/gpu": "8"}))
    assert scores_of(ledger, "binpack", **{"nvidia.com/gpu": 1}) == {"n": 0}


def states(ledger: Ledger) -> list[tuple[int, NodeState]]:
    return [(row, node_state(ledger, row, node_info)) for row, node_info in ledger.nodes()]


@settings(max_examples=examples(400))
@given(ledgers(), requests(), st.sampled_from(["binpack", "spread"]))
def test_kernels_score_every_node_as_the_scalar_rules_do(ledger: Ledger, request: Request, policy: str) -> None:
    group = ledger.group_number(request.shape.trust_group)
    emptier = policy == "spread"
    arrays, host = ledger.node_arrays, request.host
    everything, rows = slice(0, arrays.rows), np.arange(arrays.rows)
    full = vectorized.fullness(arrays, request.shape, group, everything)
    everywhere = vectorized.scores(arrays, full, everything, host, emptier=emptier)
    copied = vectorized.fullness(arrays, request.shape, group, rows)
    assert (vectorized.scores(arrays, copied, rows, host, emptier=emptier) == everywhere).all()
    scalar = {row: node_score(node, request.shape, group, policy, host) for row, node in states(ledger)}
    expected = [vectorized.UNFIT if (score := scalar.get(row)) is None else score for row in rows.tolist()]
    assert everywhere.tolist() == expected
    assert all(-1 <= score <= HIGHEST_BINPACK for score in everywhere.tolist())


@settings(max_examples=examples(400))
@given(ledgers(), requests())
def test_what_does_not_fit_has_a_reason_and_only_that(ledger: Ledger, request: Request) -> None:
    group = ledger.group_number(request.shape.trust_group)
    broken = vectorized.rules(ledger.node_arrays, request.shape, slice(0, ledger.node_arrays.rows))
    for row, node in states(ledger):
        why = refusal(node, request, group)
        assert (
            (why is None) == fits(node, request.shape, group) == (choose_gpus(node, request.shape, group) is not None)
        )
        if why is not None:
            assert why.text
            assert broken[row] == (FitRule.NO_GPUS if why.rule is FitRule.BROKEN else why.rule)


@given(ledgers(), requests())
def test_chosen_gpus_fit_are_distinct_and_in_order(ledger: Ledger, request: Request) -> None:
    group = ledger.group_number(request.shape.trust_group)
    for _, node in states(ledger):
        chosen = choose_gpus(node, request.shape, group)
        if chosen is None or node.serving_mode is ServingMode.OTHER_PLUGIN:
            continue
        assert len(chosen) == request.shape.gpus
        assert all(gpu_fits(gpu, request.shape, node.info, group) for gpu in chosen)
        indices = [gpu.gpu.index for gpu in chosen]
        assert indices == sorted(set(indices))
