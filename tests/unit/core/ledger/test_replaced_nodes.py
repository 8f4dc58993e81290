"""A machine is replaced under its name: other GPUs, and for a while the pods of the one before.

Within 40 s nobody has noticed that the machine was lost: its Node object stays, and the new kubelet takes it over.
Later the object is deleted and made anew. In both cases pods that are bound there name GPUs that are gone.
"""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import Node
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.allocation import encode_allocation
from gputile.core.ledger.events import NodeApplied, NodeDeleted, NodesReplaced, PodApplied, PodDeleted
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.decision import Decision
from gputile.core.scheduling.placement_engine import PlacementEngine
from tests.corebuilders import allocation_text, gpu_node, ledger_of, pod, request_of, share
from tests.stateful.ledgercheck import image

pytestmark = pytest.mark.requirement("B1", "B2")

GPUS, UNITS = 2, 8


def machine(serial: str) -> Node:
    """The node ``n`` on a machine whose GPUs' UUIDs have this serial number."""
    made = gpu_node(serial, mode="cgpu", sizes=[UNITS * 1024] * GPUS)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, name="n"))


def bound(uid: str, serial: str, gpu: int, units: int) -> PodApplied:
    text = allocation_text(share(f"GPU-{serial}-{gpu}", units * 1024))
    return PodApplied(pod(uid, node="n", annotations={ALLOCATION_ANNOTATION: text}, asks={"mem": units}))


def replace(ledger: Ledger, way: str) -> None:
    if way == "deleted first":
        ledger.apply(NodeDeleted("n"))
    event = NodesReplaced([machine("new")]) if way == "listed anew" else NodeApplied(machine("new"))
    ledger.apply(event)


def fitting(ledger: Ledger) -> int:
    """Return how many pods of one unit the node takes."""
    for number in range(GPUS * UNITS + 1):
        uid = f"one-more-{number}"
        decided = PlacementEngine(ledger).decide(request_of(pod(uid, asks={"mem": 1})), "n", 1)
        if not isinstance(decided, Decision) or decided.allocation is None:
            return number
        there = {ALLOCATION_ANNOTATION: encode_allocation(decided.allocation)}
        ledger.apply(PodApplied(pod(uid, node="n", annotations=there, asks={"mem": 1})))
    raise AssertionError("more than the node has")


WAYS = st.sampled_from(["deleted first", "under the same object", "listed anew"])


@given(WAYS, st.lists(st.tuples(st.integers(0, GPUS - 1), st.integers(1, UNITS // 2)), min_size=1, max_size=2))
def test_nothing_is_given_away_while_a_pod_of_the_lost_machine_is_there(way: str, held: list[tuple[int, int]]) -> None:
    """It may be on any of the new GPUs: its kubelet has started it before any agent was there."""
    ledger = ledger_of(machine("old"))
    for number, (gpu, units) in enumerate(held):
        ledger.apply(bound(f"p{number}", "old", gpu, units))
    replace(ledger, way)
    for number in range(len(held)):
        assert {booking.uid for booking in ledger.unplaced("n")} == {f"p{left}" for left in range(number, len(held))}
        assert fitting(ledger) == 0
        ledger.apply(PodDeleted(f"p{number}"))
    assert image(ledger) == image(ledger_of(machine("new")))
    assert fitting(ledger) == GPUS * UNITS, "nothing of the lost machine counts"


@given(WAYS)
def test_a_pod_that_its_agent_has_put_on_a_new_gpu_counts_there(way: str) -> None:
    """The agent corrects the annotation of a pod that its kubelet admitted with new devices."""
    ledger = ledger_of(machine("old"))
    ledger.apply(bound("p", "old", 0, 3))
    replace(ledger, way)
    ledger.apply(bound("p", "new", 1, 3))
    assert ledger.unplaced("n") == []
    assert fitting(ledger) == GPUS * UNITS - 3


@given(WAYS)
def test_the_same_gpus_in_another_machine_are_what_they_were(way: str) -> None:
    """As where the GPUs were put into another machine: who held them holds them."""
    ledger = ledger_of(machine("new"))
    ledger.apply(bound("p", "new", 0, 3))
    replace(ledger, way)
    assert fitting(ledger) == GPUS * UNITS - 3
