"""The tables of ``kubectl inspect cgpu``."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.ledger.ledger import Ledger
from gputile.tools.views.inspect import (
    GpuSummary,
    NodeSummary,
    PodSummary,
    details,
    node_summaries,
    summary,
    unit_name,
    unit_of,
)
from tests.fakes.corebuilders import allocation_text, gpu_node, pod, share

pytestmark = pytest.mark.requirement("V2", "V3")


def gpu(index: int, used: int, total: int = 15, unit: int = 1024, pods: int = 0) -> GpuSummary:
    return GpuSummary(index, f"GPU-{index}", "T4", total * unit, used * unit, 0, pods, healthy=True)


def node(
    name: str, *gpus: GpuSummary, unit: int = 1024, mode: str = "share", pods: tuple[PodSummary, ...] = ()
) -> NodeSummary:
    return NodeSummary(name, "192.0.2.109", mode, mode not in ("default", "topology"), unit, list(gpus), list(pods))


DOCUMENTED = """\
NAME                   IPADDRESS      GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU2(Allocated/Total)  \
GPU3(Allocated/Total)  GPU Memory(GiB)
cn-shanghai.192.0.2.109  192.0.2.109  15/15                   9/15                   0/15                   \
0/15                   24/60
--------------------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
24/60 (40%)
"""


def test_the_documented_table_to_the_character() -> None:
    tile = node("cn-shanghai.192.0.2.109", gpu(0, 15), gpu(1, 9), gpu(2, 0), gpu(3, 0))
    assert summary([tile], 1024) == DOCUMENTED


def test_no_nodes_and_no_memory_are_no_error() -> None:
    assert summary([], 1024).endswith("0/0 (0%)\n")
    assert details([], 1024).endswith("0/0 (0%)\n")


def test_nodes_with_different_gpus_keep_their_columns() -> None:
    text = summary([node("one", gpu(0, 1)), node("gap", gpu(0, 2), gpu(2, 3)), node("none")], 1024)
    heading, one, gap, none = text.splitlines()[:4]
    assert "GPU1" not in heading
    for line, cell, column in ((one, "1/15", "GPU0"), (gap, "2/15", "GPU0"), (gap, "3/15", "GPU2")):
        assert line.index(cell) == heading.index(column), "cells stand under their heading"
    assert one.split()[-1] == "1/15"
    assert none.split()[-1] == "0/0"


@pytest.mark.requirement("V3")
def test_a_shared_node_that_cannot_be_read_says_so() -> None:
    """0/0 alone would read as a node without GPUs."""
    broken = NodeSummary(
        "broken", "192.0.2.1", "share", True, 1024, [], [], "its annotation x cannot be read: not JSON"
    )
    lines = summary([node("n", gpu(0, 2)), broken], 1024).splitlines()
    assert lines[-3:-1] == ["Problems:", "NAME    PROBLEM"]
    assert lines[-1] == "broken  its annotation x cannot be read: not JSON"
    assert "Problems:" not in summary([node("n", gpu(0, 2)), node("none")], 1024)


@pytest.mark.requirement("V3", "B6")
def test_a_gpu_that_is_out_of_order_is_named() -> None:
    """The documents' table has no mark for it."""
    unhealthy = msgspec.structs.replace(gpu(1, 0), healthy=False)
    lines = summary(
        [node("n", gpu(0, 2), unhealthy), node("w", gpu(0, 15, pods=1), unhealthy, mode="default")], 1024
    ).splitlines()
    assert lines[1].split() == ["n", "192.0.2.109", "2/15", "0/15", "2/30"]
    assert "2/30 (6%)" in lines, "whole GPUs are counted by themselves"
    assert lines[lines.index("Whole GPUs:") + 2].split() == ["w", "192.0.2.109", "default", "1/2*"]
    assert lines[-2:] == ["n     GPU 1 is unhealthy", "w     GPU 1 is unhealthy"]
    assert "PROBLEM:    GPU 1 is unhealthy" in details([node("n", unhealthy)], 1024)


@pytest.mark.requirement("V3", "G3")
def test_a_time_sliced_node_shows_its_pods() -> None:
    """Several on one GPU, of as many as may have it in turns."""
    pods = tuple(PodSummary("ns", f"p{i}", {0: 15360}, whole=True, asked_mib=0, slices={0: i}) for i in (1, 2))
    found = node("sliced", gpu(0, 15, pods=3), gpu(1, 0), mode="default", pods=pods)
    lines = summary([msgspec.structs.replace(found, replicas=4)], 1024).splitlines()
    assert "Whole GPUs:" not in lines
    rows = [line.split() for line in lines[lines.index("Time-sliced GPUs, by time slices:") + 1 :]]
    assert rows[1] == ["sliced", "192.0.2.109", "3/4", "0/4"]
    text = details([msgspec.structs.replace(found, replicas=4)], 1024)
    assert ["p2", "ns", "2", "0"] in [line.split() for line in text.splitlines()]
    assert "Allocated : 3 time slices\nTotal :     8 time slices of 2 GPUs" in text


def test_a_pod_on_unknown_gpus_adds_a_column() -> None:
    lost = PodSummary("ns", "lost", {}, whole=False, asked_mib=3 * 1024, problem="bound by hand")
    tile = node("n", gpu(0, 2), pods=(PodSummary("ns", "p", {0: 2048}, whole=False, asked_mib=2048), lost))
    heading, row = summary([tile], 1024).splitlines()[:2]
    assert heading.split()[3] == "PENDING(Allocated)"
    assert row.split()[2:] == ["2/15", "3", "2/15"]
    rows = [line.split() for line in details([tile], 1024).splitlines()]
    assert ["lost", "ns", "0", "3"] in rows
    assert ["p", "ns", "2", "0"] in rows


@pytest.mark.requirement("V3")
def test_the_unit_is_the_one_in_force() -> None:
    """Not a guess."""
    assert unit_of([node("n", gpu(0, 0), unit=128)], 1024) == 128
    assert unit_of([node("a", unit=128), node("b", unit=1024)], 256) == 256
    assert [unit_name(unit) for unit in (1024, 128, 2048)] == ["GiB", "128MiB", "2GiB"]


SHARES = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from((1024, 2048, 15360)), st.sampled_from((0, 25))), max_size=3
)


@given(st.lists(st.tuples(SHARES, st.booleans()), max_size=6), st.sampled_from((0, 4)))
def test_what_is_shown_of_gpus_is_what_the_ledger_counts(
    held: list[tuple[list[tuple[int, int, int]], bool]], replicas: int
) -> None:
    """``node_summaries`` adds bookings up by itself, since the ledger's arrays take long to load."""
    mode = "default" if replicas else "core_mem"
    node = gpu_node("n", mode=mode, unit_mib=1024, replicas=replicas)
    pods = []
    for number, (shares, whole) in enumerate(held):
        of_gpus = {index: share(f"GPU-n-{index}", mib, percent) for index, mib, percent in shares}
        text = allocation_text(*of_gpus.values(), whole=whole)
        pods.append(pod(f"p{number}", node="n", mem=1, annotations={ALLOCATION_ANNOTATION: text}))
    ledger = Ledger(Configuration())
    ledger.apply_node(node)
    for each in pods:
        ledger.apply_pod(each)
    (shown,) = node_summaries([node], pods, Configuration(), 0)
    arrays, row = ledger.node_arrays, ledger.row_of["n"]
    counted = zip(arrays.used[row], arrays.percent[row], arrays.pods[row], strict=True)
    assert [(gpu.booked_mib, gpu.compute_percent, gpu.pods) for gpu in shown.gpus] == [
        tuple(map(int, each)) for each in list(counted)[:4]
    ]
