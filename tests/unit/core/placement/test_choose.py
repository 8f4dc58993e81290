"""Which GPUs a pod gets and how good nodes are; the array kernels say the same as the scalar rules."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.core.devices.allocation import allocate
from gputile.core.devices.request import Request, RequestKind, Shape
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import GpuState, NodeState, ServingMode
from gputile.core.placement import vectorized
from gputile.core.placement.fit import choose_gpus, gpu_shortages, refusal
from gputile.core.refusal import FitRule
from tests.conftest import examples
from tests.fakes.corebuilders import book, gpu_node, ledger_of, pod, request_of, share
from tests.unit.core.placement.strategies import ledgers, requests

GIB = 1024


def binpack_key(gpu: GpuState) -> tuple[int, int]:
    """The GPU with the least memory free is the first, then the one with the least compute free."""
    return gpu.total - gpu.used, -min(gpu.percent, 100)


def spread_key(gpu: GpuState) -> tuple[int, int]:
    """The GPU with the smallest used fraction of memory is the first, then the one with the least compute in use."""
    return (gpu.used << 20) // gpu.total, min(gpu.percent, 100)


def node_score(ledger: Ledger, node: NodeState, shape: Shape, policy: str, host: HostResources) -> int | None:
    """The score of one node, None where the pod does not fit: by hand, what the kernels compute for all at once.

    ``policy`` is the cluster's, which compares nodes; a node's own label only compares its GPUs (M9).
    """
    if refusal(node, shape) is not None:
        return None
    chosen = choose_gpus(ledger.node_arrays, ledger.row_of[node.info.name], node, shape)
    if node.serving_mode in (ServingMode.OTHER_PLUGIN, ServingMode.SLICED):
        return 0  # below the nodes that give a GPU to the pod alone
    if shape.kind is not RequestKind.SHARED:
        gpu_used, node_used = 1000, 1000 * (sum(not gpu.empty for gpu in node.gpus) + shape.gpus) // len(node.gpus)
    else:
        first = (
            chosen[0]
            if node.info.by_claims
            else min(chosen, key=spread_key if node.info.placement == "spread" else binpack_key)
        )
        used, total = sum(min(gpu.used, gpu.total) for gpu in node.gpus), sum(gpu.total for gpu in node.gpus)
        gpu_used = 1000 * (first.used + shape.mib) // first.total
        node_used = 1000 * (used + shape.gpus * shape.mib) // total
    if policy == "spread":
        return vectorized.HIGHEST_SPREAD - gpu_used - node_used
    arrays, row, whole = ledger.node_arrays, ledger.row_of[node.info.name], node.info.host
    left = HostResources(int(arrays.cpu[row]), int(arrays.host_mib[row]))
    cpu, mib = ((left.cpu - host.cpu) * 1000 // max(whole.cpu, 1), (left.mib - host.mib) * 1000 // max(whole.mib, 1))
    lopsided = 1000 - node_used - min(max(min(cpu, mib), 0), 1000)
    full = 1000 * vectorized.STRANDED_GPU + vectorized.OWN_GPU * gpu_used + vectorized.NODE * node_used
    stranded = vectorized.STRANDED_GPU * max(lopsided, 0) + vectorized.STRANDED_HOST * max(-lopsided, 0)
    return (full - stranded) // vectorized.GRAIN


def ledger_with(placement: str, used: Sequence[tuple[int, int]], sizes: Sequence[int], mode: str = "cgpu") -> Ledger:
    ledger = ledger_of(gpu_node(mode=mode, placement=placement, sizes=sizes))
    for gpu, (mib, percent) in enumerate(used):
        if mib:
            book(ledger, f"h{gpu}", "n", share(f"GPU-n-{gpu}", mib, percent))
    return ledger


def chosen(ledger: Ledger, units: int, count: int = 1, core: int = 0) -> list[int]:
    node = ledger.state("n")
    assert node is not None
    limits = {"mem": units} | ({"core": core} if core else {})
    shape = request_of(pod(count=count, asks=limits)).shape
    gpus = choose_gpus(ledger.node_arrays, ledger.row_of["n"], node, shape)
    return [gpu.gpu.index for gpu in gpus]


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


@pytest.mark.requirement("G3")
def test_of_gpus_in_turns_a_pod_gets_the_one_that_the_fewest_share() -> None:
    ledger = ledger_of(gpu_node(sizes=V100, replicas=3))
    for uid, gpu in (("a", 0), ("b", 1), ("c", 1)):
        book(ledger, uid, "n", share(f"GPU-n-{gpu}", V100[gpu], 100), whole=True)
    ((row, state),) = states(ledger)
    shape = request_of(pod(asks={"nvidia.com/gpu": 2})).shape
    assert [gpu.gpu.index for gpu in choose_gpus(ledger.node_arrays, row, state, shape)] == [0, 2]


def states(ledger: Ledger) -> list[tuple[int, NodeState]]:
    return [(row, state) for name, row in ledger.row_of.items() if (state := ledger.state(name)) is not None]


@settings(max_examples=examples(400))
@given(ledgers(), requests(), st.sampled_from(["binpack", "spread"]))
def test_kernels_score_every_node_as_the_scalar_rules_do(ledger: Ledger, request: Request, policy: str) -> None:
    emptier = policy == "spread"
    arrays, host = ledger.node_arrays, request.host
    everything, rows = slice(0, arrays.rows), np.arange(arrays.rows)
    everywhere = vectorized.scores(arrays, request.shape, host, everything, emptier=emptier)
    assert (vectorized.scores(arrays, request.shape, host, rows, emptier=emptier) == everywhere).all()
    scalar = {row: node_score(ledger, node, request.shape, policy, host) for row, node in states(ledger)}
    expected = [vectorized.UNFIT if (score := scalar.get(row)) is None else score for row in rows.tolist()]
    assert everywhere.tolist() == expected
    assert all(-1 <= score <= vectorized.HIGHEST_BINPACK for score in everywhere.tolist())


@settings(max_examples=examples(400))
@given(ledgers(), requests())
def test_what_does_not_fit_has_a_reason_and_only_that(ledger: Ledger, request: Request) -> None:
    broken = vectorized.rules(ledger.node_arrays, request.shape, slice(0, ledger.node_arrays.rows))
    for row, node in states(ledger):
        why = refusal(node, request.shape)
        if why is not None:
            assert why.text
            assert broken[row] == (FitRule.NO_GPUS if why.rule is FitRule.BROKEN else why.rule)


@given(ledgers(), requests())
def test_chosen_gpus_fit_are_distinct_without_time_slicing_and_in_order(ledger: Ledger, request: Request) -> None:
    for row, node in states(ledger):
        if refusal(node, request.shape) is not None or node.serving_mode is ServingMode.OTHER_PLUGIN:
            continue
        chosen = choose_gpus(ledger.node_arrays, row, node, request.shape)
        assert len(chosen) == request.shape.gpus
        assert not any(list(gpu_shortages(gpu, request.shape, node.info)) for gpu in chosen)
        indices = [gpu.gpu.index for gpu in chosen]
        assert indices == sorted(indices)
        slices = Counter(chosen)
        if node.info.sliced and request.shape.containers:
            assert all(gpu.pods + count <= node.info.replicas for gpu, count in slices.items())
            assert allocate(request, [gpu.gpu for gpu in chosen], "default", 0).containers
        else:
            assert max(slices.values()) == 1
