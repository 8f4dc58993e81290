"""A pod that waits while the cluster's memory unit changes: it keeps asking for the same memory."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import MEMORY_UNIT_ANNOTATION
from gputile.core.devices.request import parse_request
from gputile.core.scheduling.decision import Decision
from gputile.core.scheduling.placement_engine import PlacementEngine
from tests.corebuilders import gpu_node, ledger_of, pod

pytestmark = pytest.mark.requirement("U5", "U9", "M12")

UNITS = st.sampled_from([64, 100, 128, 512, 1000, 1024, 2048])


def stamped(units: int, unit_mib: int, gpus: int = 1) -> Pod:
    return pod(mem=units, count=gpus, annotations={MEMORY_UNIT_ANNOTATION: str(unit_mib)})


def placed(asking: Pod, configured_mib: int, *nodes: Node) -> Decision | str:
    """Return the decision, or what kube-scheduler is told of the first node."""
    configuration = Configuration(gpu_memory_unit=f"{configured_mib}MiB")
    engine = PlacementEngine(ledger_of(*nodes, configuration=configuration))
    request = parse_request(asking, configuration.unit_mib)
    assert request is not None
    name = nodes[0].metadata.name
    found = engine.filter(request, [name])
    if not found.feasible:
        assert not found.refused, "nobody's leaving would help: nothing is preempted for it"
        return found.unresolvable[name]
    decision = engine.decide(request, name, 1)
    assert isinstance(decision, Decision)
    return decision


def test_it_waits_and_is_told_what_to_ask_for_instead() -> None:
    node = gpu_node(mode="cgpu", unit_mib=128)
    assert placed(stamped(4, 1024), 128, node) == (
        "n: its memory unit is 128 MiB; the pod counts in the 1024 MiB that were in force when it was created: "
        "create it anew, and ask 32 units for its 4096 MiB"
    )
    anew = placed(stamped(32, 128), 128, node)
    assert isinstance(anew, Decision)
    assert anew.allocation is not None
    assert [share.mib for share in anew.allocation.gpus] == [4096]


@given(units=st.integers(1, 12), gpus=st.integers(1, 3), before=UNITS, after=UNITS)
def test_what_it_is_told_is_as_much_and_can_be_asked_for(units: int, gpus: int, before: int, after: int) -> None:
    node = gpu_node(mode="cgpu", sizes=[2**20] * 3, unit_mib=after)
    told = placed(stamped(units * gpus, before, gpus), after, node)
    if before == after:
        assert isinstance(told, Decision)
        return
    assert isinstance(told, str)
    said = re.search(r"ask (\d+) units for its (\d+) MiB", told)
    assert said is not None
    number, mib = int(said[1]), int(said[2])
    assert mib == units * gpus * before
    anew = placed(stamped(number, after, gpus), after, node)
    assert isinstance(anew, Decision)
    assert anew.allocation is not None
    for share in anew.allocation.gpus:
        assert units * before <= share.mib < units * before + after
