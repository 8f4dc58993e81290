"""The arithmetic of init containers and sidecars (KEP-753) against a simulation of a pod's life."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.core.devices.allocation import Allocation, allocate, assign_whole
from gputile.core.devices.inventory import Gpu
from gputile.core.devices.request import ContainerRequest, Phase, Request, RequestKind, Shape, effective, parse_request
from tests.fakes.corebuilders import container, pod

INIT_PHASES = st.sampled_from([Phase.INIT, Phase.SIDECAR])
amounts = st.integers(1, 5)


@st.composite
def parts(draw: st.DrawFn, /, **fixed: int) -> tuple[ContainerRequest, ...]:
    before = draw(st.lists(INIT_PHASES, max_size=4))
    phases = [*before, *[Phase.APP] * draw(st.integers(0 if before else 1, 3))]
    return tuple(
        ContainerRequest(f"c{i}", phase, units=n, percent=5 * draw(st.integers(0, 3)), gpus=n)
        for i, phase in enumerate(phases)
        for n in [draw(amounts)]
    )


def moments(containers: tuple[ContainerRequest, ...]) -> list[list[ContainerRequest]]:
    """Live the pod: which containers run at each moment. Init containers run to their end, in order, one by one."""
    running: list[ContainerRequest] = []
    seen = []
    for part in containers:
        if part.phase is Phase.APP:
            continue
        running.append(part)
        seen.append(list(running))
        if part.phase is Phase.INIT:
            running.remove(part)
    seen.append(running + [part for part in containers if part.phase is Phase.APP])
    return seen


@given(parts())
def test_the_peak_is_that_of_the_pods_life(containers: tuple[ContainerRequest, ...]) -> None:
    for amount in (lambda part: part.units, lambda part: part.percent, lambda part: part.gpus):
        assert effective(containers, amount) == max(sum(map(amount, moment)) for moment in moments(containers))


def shared(containers: tuple[ContainerRequest, ...], gpus: int, unit: int) -> Allocation:
    mib = effective(containers, lambda part: part.units) * unit // gpus
    percent = effective(containers, lambda part: part.percent) // gpus
    chosen = tuple(Gpu(i, f"u{i}", 10**6) for i in range(gpus))
    return allocate(Request(Shape(RequestKind.SHARED, gpus, mib, percent), unit, containers), chosen, "cgpu", 0)


@pytest.mark.requirement("B1")
@given(parts(), st.integers(1, 3), st.sampled_from([64, 128, 1024]))
def test_at_each_moment_the_containers_fit_in_what_the_pod_holds_b1(
    containers: tuple[ContainerRequest, ...], gpus: int, unit: int
) -> None:
    containers = tuple(
        ContainerRequest(p.name, p.phase, units=p.units * gpus, percent=p.percent * gpus) for p in containers
    )
    allocation = shared(containers, gpus, unit)
    for held in allocation.gpus:
        loads = [
            [share for part in moment for share in allocation.containers[part.name] if share.uuid == held.uuid]
            for moment in moments(containers)
        ]
        assert max(sum(share.mib for share in load) for load in loads) == held.mib
        assert max(sum(share.percent for share in load) for load in loads) == held.percent
    for part in containers:
        assert sum(share.mib for share in allocation.containers[part.name]) == part.units * unit


@pytest.mark.requirement("L3")
@given(parts())
def test_whole_gpus_are_never_on_two_running_containers_l3(containers: tuple[ContainerRequest, ...]) -> None:
    count = effective(containers, lambda part: part.gpus)
    chosen = tuple(Gpu(i, f"u{i}", 1000) for i in range(count))
    allocation = allocate(Request(Shape(RequestKind.WHOLE, count), 1024, containers), chosen, "default", 0)
    assert allocation.whole
    assert [(share.mib, share.percent) for share in allocation.gpus] == [(1000, 100)] * count
    for moment in moments(containers):
        running = [share.uuid for part in moment for share in allocation.containers[part.name]]
        assert len(running) == len(set(running)) == sum(part.gpus for part in moment)


@given(parts(), st.lists(st.integers(0, 4), max_size=6))
def test_running_containers_never_have_more_slices_of_a_gpu_than_there_are(
    containers: tuple[ContainerRequest, ...], slices: list[int]
) -> None:
    """Without init containers an assignment is found whenever there is one (Gale-Ryser theorem)."""
    assigned = assign_whole(containers, dict(enumerate(slices)))
    if assigned is None:
        at_once = sorted((part.gpus for part in containers), reverse=True)
        few = [sum(at_once[:k]) > sum(min(k, count) for count in slices) for k in range(1, len(containers) + 1)]
        assert any(few) or any(part.phase is Phase.INIT for part in containers)
        return
    assert all(len(set(assigned[part.name])) == part.gpus for part in containers)
    peak = Counter[int]()
    for moment in moments(containers):
        peak |= Counter(gpu for part in moment for gpu in assigned[part.name])
    assert all(count <= slices[gpu] for gpu, count in peak.items())
    assert peak.total() == effective(containers, lambda part: part.gpus)
    assert assign_whole(containers, peak) is not None


def test_a_pods_own_manifest_goes_by_the_same_arithmetic() -> None:
    asking = pod(
        "p",
        container("app", mem=4),
        init=[container("first", mem=7), container("side", sidecar=True, mem=2), container("last", mem=6)],
    )
    request = parse_request(asking, 1024)
    assert request is not None
    assert request.units == 8  # the sidecar's 2 beside the last init container's 6
    assert [part.phase for part in request.containers] == [Phase.INIT, Phase.SIDECAR, Phase.INIT, Phase.APP]
