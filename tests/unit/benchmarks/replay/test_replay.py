"""The published packing protocol, on traces small enough to follow by hand."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.replay.engine import Curve, Fragments, replay
from benchmarks.replay.study import POLICIES, make_placer
from benchmarks.replay.trace import read_arrivals, read_nodes, read_workload

from tests.unit.benchmarks.replay.traces import write_trace

pytestmark = pytest.mark.requirement("B3")


def curve_of(trace: Path, policy: str) -> Curve:
    nodes, workload = read_nodes(trace), read_workload(trace, "tiny")
    arrivals = read_arrivals(trace, nodes, workload, 42)
    return replay(make_placer(policy, nodes, workload, arrivals, 1), workload, arrivals)


@pytest.mark.parametrize("policy", POLICIES)
def test_models_counts_and_room_decide_what_fits(tmp_path: Path, policy: str) -> None:
    curve = curve_of(write_trace(tmp_path), policy)
    assert curve.total == 3000
    assert curve.arrived.tolist() == [600, 1200, 2200, 2600, 4600]
    assert not curve.placed[4], "no node has two free GPUs any more"
    assert curve.used[-1] <= curve.total


def test_fragments_by_hand(tmp_path: Path) -> None:
    """F of a node for a pod that cannot run there is all that is free; else what lies on GPUs too small for it."""
    trace = write_trace(tmp_path, pods="a,1000,1,1,600,\nb,1000,1,1,600,\n")
    fragments = Fragments(read_workload(trace, "tiny"))
    cpu, allowed = np.array([8000, 8000, 0]), np.ones((3, 1), np.bool_)
    free = np.array([[1000, 400], [400, 400], [1000, 0]])
    found = fragments.of(cpu, free, allowed)
    assert found.tolist() == [400.0, 800.0, 1000.0]


def test_fgd_avoids_stranding_a_remnant(tmp_path: Path) -> None:
    """With only pods of 0.6 and 0.4 typical, 0.4 goes onto the GPU that has 0.4 left."""
    trace = write_trace(tmp_path, pods="a,1000,1,1,600,\nb,1000,1,1,400,\n", order="0 1")
    assert curve_of(trace, "fgd").placed.all()


def test_what_the_trace_does_not_give_is_drawn_from_the_seed(tmp_path: Path) -> None:
    trace = write_trace(tmp_path)
    nodes, workload = read_nodes(trace), read_workload(trace, "tiny")
    one, same, other = (read_arrivals(trace, nodes, workload, seed) for seed in (7, 7, 8))
    assert one.pods.tolist() == same.pods.tolist()
    assert one.rank.tolist() == same.rank.tolist()
    assert len(set(one.pods.tolist())) == len(one.pods), "no pod comes again before every pod came once"
    assert other.pods.tolist() != one.pods.tolist() or other.rank.tolist() != one.rank.tolist()
