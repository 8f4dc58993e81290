"""The bound of how many pods of a gang could have a place is never below what a search of all places finds."""

from collections import Counter
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.core import ResourceRequirements
from gputile.api.well_known import GPU_MEMORY
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.placement.steps import at_once
from gputile.core.scheduling import gang_bound
from gputile.core.scheduling.gang_kinds import GangCandidate
from tests.corebuilders import book, gpu_node, ledger_of, pod, request_of, share
from tests.examples import examples

GIB = 1024
SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=4)
TAKEN = st.lists(st.integers(0, 8), min_size=4, max_size=4)
ASKED = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3)), min_size=1, max_size=6)  # GiB, and milli-CPU


def most(free: tuple[int, ...], asked: tuple[int, ...]) -> int:
    """Return how many pods find a GPU at best."""

    @cache
    def of(left: tuple[int, ...], place: int) -> int:
        if place == len(asked):
            return 0
        found = of(left, place + 1)
        for i, gib in enumerate(left):
            if gib >= asked[place]:
                rest = tuple(sorted((*left[:i], *left[i + 1 :], gib - asked[place])))
                found = max(found, 1 + of(rest, place + 1))
        return found

    return of(tuple(sorted(free)), 0)


@pytest.mark.requirement("M13")
@pytest.mark.parametrize("groups", [64, 1])
@settings(max_examples=examples(200), deadline=None)
@given(sizes=SIZES, taken=TAKEN, asked=ASKED)
def test_it_is_no_less_than_what_has_a_place(
    groups: int, sizes: list[int], taken: list[int], asked: list[tuple[int, int]]
) -> None:
    node = gpu_node(
        mode="cgpu", sizes=[gib * GIB for gib in sizes], allocatable={"cpu": "9", "pods": "99", GPU_MEMORY: "99"}
    )
    ledger = ledger_of(node)
    used = [min(pair) for pair in zip(sizes, taken, strict=False)]
    for i, gib in enumerate(used):
        if gib:
            book(ledger, str(i), "n", share(f"GPU-n-{i}", gib * GIB))
    specs = []
    for (gib, cpu), count in Counter(asked).items():
        asking = pod(mem=gib)
        resources = ResourceRequirements(limits={GPU_MEMORY: gib}, requests={"cpu": f"{cpu}m"})
        containers = (msgspec.structs.replace(asking.spec.containers[0], resources=resources),)
        asking = msgspec.structs.replace(asking, spec=msgspec.structs.replace(asking.spec, containers=containers))
        specs.append((GangCandidate(asking, request_of(asking)), count))
    free = tuple(size - gib for size, gib in zip(sizes, used, strict=True))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gang_bound, "_MOST_GROUPS", groups)
        bound = at_once(gang_bound.most_placed(specs, ledger, Predicates([node]), len(asked)))
    assert bound >= most(free, tuple(gib for gib, _ in asked))
