"""Places for gangs: the search against trying everything, its bound, and which pods count as started."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, Pod, PodCondition, ResourceRequirements
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_MEMORY, RESERVATION_ANNOTATION, WHOLE_GPU
from gputile.core.devices.allocation import decode_allocation, encode_allocation
from gputile.core.devices.reservation import Reservation, encode_reservation
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.gang_search import search
from gputile.core.scheduling import gang_bound
from gputile.core.scheduling.gang_kinds import GangCandidate
from gputile.core.scheduling.gang_plan import GangPlan, plan_gang
from gputile.core.scheduling.gang_rules import started
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from tests.conftest import examples
from tests.fakes.corebuilders import allocation_text, book, gpu_node, ledger_of, pod, request_of, share
from tests.stateful.ledgercheck import image

GIB = 1024


@dataclass
class Boxes:
    """A ground of boxes of some size: a pod takes its size of one box."""

    free: list[int]
    sizes: Sequence[int]
    taken: list[tuple[int, int]] = field(default_factory=list)
    tries: int = 0

    def most(self, enough: int) -> int:
        kinds = {size: sum(free // size for free in self.free) for size in self.sizes}
        return sum(min(self.sizes.count(size), room) for size, room in kinds.items())

    def options(self, member: int) -> Iterator[int]:
        for box in range(len(self.free)):
            if self.free[box] >= self.sizes[member]:
                yield box

    def put(self, member: int, place: int) -> None:
        self.tries += 1
        self.free[place] -= self.sizes[member]
        self.taken.append((member, place))

    def take_back(self, member: int) -> None:
        last, place = self.taken.pop()
        assert last == member, "only the latest is taken back"
        self.free[place] += self.sizes[member]

    def state_key(self) -> Hashable:
        return tuple(sorted((place, self.sizes[member]) for member, place in self.taken))


def packs(free: Sequence[int], sizes: Sequence[int]) -> bool:
    """Try every way."""
    for boxes in product(range(len(free)), repeat=len(sizes)):
        left = list(free)
        for box, size in zip(boxes, sizes, strict=True):
            left[box] -= size
        if min(left, default=0) >= 0:
            return True
    return False


@pytest.mark.requirement("M13", "B5")
@settings(deadline=None)
@given(
    free=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    data=st.data(),
)
def test_places_are_found_wherever_there_are_any(free: list[int], sizes: list[int], data: st.DataObject) -> None:
    sizes.sort(reverse=True)
    needed = data.draw(st.integers(1, len(sizes)))
    ground = Boxes(list(free), sizes)
    found = search(sizes, needed, ground, 100_000)
    assert ground.free == free
    assert not ground.taken
    assert found.certain
    assert found.fits == any(packs(free, some) for some in combinations(sizes, needed))
    left = list(free)
    for size, place in zip(sizes, found.places, strict=True):
        if place is not None:
            left[place] -= size
    assert min(left) >= 0
    if found.fits:
        assert found.placed >= needed
    if packs(free, sizes):
        assert found.placed == len(sizes), "no pod stays behind where all fit"


@pytest.mark.requirement("M13", "B5")
@given(budget=st.integers(1, 30))
def test_a_search_keeps_to_its_budget_and_says_that_it_gave_up(budget: int) -> None:
    sizes = [5, 4, 4, 3, 3, 3]
    ground = Boxes([11, 11], sizes)  # 22 for 22, and no way to fill both
    found = search(sizes, 6, ground, budget)
    assert ground.tries <= budget + len(sizes)
    assert ground.free == [11, 11]
    if not found.fits:
        assert not found.certain or budget == 30


@pytest.mark.requirement("M13", "B5")
def test_a_gang_of_thousands_needs_no_stack() -> None:
    sizes = [1] * 5000
    assert search(sizes, 5000, Boxes([5000], sizes), 10_000).fits


@pytest.mark.requirement("M13", "B5")
def test_more_pods_than_there_is_room_for_are_hopeless_at_once() -> None:
    """How many would have fitted is still told."""
    sizes = [3] * 8
    ground = Boxes([7, 7], sizes)
    found = search(sizes, 5, ground, 10_000)
    assert (found.fits, found.certain, found.placed) == (False, True, 4)
    assert ground.tries <= 2 * len(sizes)


# -- on a ledger

CONFIGURATION = Configuration(max_pods_per_gpu=2, admission=AdmissionConfiguration(gangs=True))


def node(name: str, mode: str, sizes: Sequence[int], cpu: int) -> Node:
    amounts = {"cpu": str(cpu), "pods": "99", GPU_MEMORY: "999", WHOLE_GPU: str(len(sizes)) if not mode else "0"}
    return gpu_node(name, mode=mode, sizes=[size * GIB for size in sizes], allocatable=amounts)


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    modes = draw(st.lists(st.sampled_from(["cgpu", "cgpu", ""]), min_size=1, max_size=2))
    sizes = st.lists(st.integers(1, 5), min_size=1, max_size=2)
    return [node(f"n{i}", mode, draw(sizes), draw(st.integers(1, 3))) for i, mode in enumerate(modes)]


def asking(number: int, units: int, gpus: int) -> Pod:
    if not units:
        return pod(f"p{number}", cpu=1, asks={WHOLE_GPU: gpus})
    return pod(f"p{number}", cpu=1, mem=units * gpus, count=gpus)


asks = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2)), min_size=1, max_size=4)


def try_everything(nodes: Sequence[Node], wanted: Sequence[tuple[int, int]]) -> bool:
    """Place each pod on every set of GPUs of every node, with arithmetic of its own."""
    modes = [bool(each.metadata.labels) for each in nodes]
    gpus = [[[state.total, 0] for state in _gpus(each)] for each in nodes]
    cpus = [int(each.status.allocatable["cpu"]) for each in nodes]

    def place(i: int) -> bool:
        if i == len(wanted):
            return True
        units, count = wanted[i]
        for n in range(len(nodes)):
            if modes[n] != bool(units) or not cpus[n]:
                continue
            for chosen in combinations(gpus[n], count):
                if any(c[1] >= (2 if units else 1) or c[0] < units * GIB for c in chosen):
                    continue
                cpus[n] -= 1
                for c in chosen:
                    c[0], c[1] = c[0] - units * GIB, c[1] + 1
                found = place(i + 1)
                cpus[n] += 1
                for c in chosen:
                    c[0], c[1] = c[0] + units * GIB, c[1] - 1
                if found:
                    return True
        return False

    return place(0)


def _gpus(each: Node) -> Sequence:  # type: ignore[type-arg]
    state = PlacementEngine(ledger_of(each)).state(each.metadata.name)
    assert state is not None
    return state.gpus


def plan(
    ledger: Ledger, predicates: Predicates, pods: Sequence[Pod], needed: int, closed: Collection[str] = ()
) -> GangPlan:
    engine = PlacementEngine(ledger)
    members = [GangCandidate(each, engine.request(each)) for each in pods]
    return plan_gang(members, needed, engine, predicates, 1, closed)


@pytest.mark.requirement("M13", "B5")
@settings(deadline=None, max_examples=examples(200))
@given(nodes=clusters(), wanted=asks, closed=st.sets(st.integers(0, 2), max_size=1))
def test_a_gang_is_planned_exactly_where_trying_everything_finds_a_way(
    nodes: list[Node], wanted: list[tuple[int, int]], closed: set[int]
) -> None:
    """GPUs, pods a GPU, and kube-scheduler's CPU, all at once; the ledger is left as it was.

    Closed nodes are as if they were not there.
    """
    names = {each.metadata.name for i, each in enumerate(nodes) if i in closed}
    ledger, predicates = ledger_of(*nodes, configuration=CONFIGURATION), Predicates(nodes)
    before = image(ledger)
    pods = [asking(i, *want) for i, want in enumerate(wanted)]
    found = plan(ledger, predicates, pods, len(pods), names)
    assert image(ledger) == before
    assert found.certain
    assert found.fits == try_everything([each for each in nodes if each.metadata.name not in names], wanted)
    assert not names & {place.node for place in found.places.values()}
    assert bool(found.lacking) != (len(found.places) == len(pods))
    _check(ledger, found, pods)


def _check(ledger: Ledger, found: GangPlan, pods: Sequence[Pod]) -> None:
    """No GPU of a plan holds more than it has."""
    used: dict[str, int] = {}
    total = {gpu.uuid: gpu.mib for _, node_info in ledger.nodes() for gpu in node_info.inventory.gpus}
    for each in pods:
        place = found.places.get(each.metadata.uid)
        if place is None:
            continue
        assert isinstance(place, Decision)
        assert place.allocation is not None
        for each_share in place.allocation.gpus:
            used[each_share.uuid] = used.get(each_share.uuid, 0) + each_share.mib
            assert used[each_share.uuid] <= total[each_share.uuid]


@pytest.mark.requirement("B5")
def test_what_is_missing_is_named_with_the_others_in_their_places() -> None:
    """B5, "Pending with a reason"."""
    nodes = [node("a", "cgpu", [5], 9), node("b", "cgpu", [4], 9)]
    found = plan(
        ledger_of(*nodes, configuration=CONFIGURATION), Predicates(nodes), [asking(i, 3, 1) for i in range(3)], 3
    )
    assert len(found.places) == 2
    assert "a: GPU 0 has 2 GiB of 5 GiB free; the pod needs 3 GiB on one GPU" in found.lacking


@pytest.mark.requirement("M13", "B5")
def test_a_pod_without_a_gpu_takes_part() -> None:
    nodes = [node("n", "cgpu", [5], 1)]
    ledger, predicates = ledger_of(*nodes, configuration=CONFIGURATION), Predicates(nodes)
    launcher = pod("launcher", cpu=1)
    assert plan(ledger, predicates, [launcher], 1).places["launcher"].allocation is None
    found = plan(ledger, predicates, [launcher, asking(1, 1, 1)], 2)
    assert not found.fits
    assert "1 Insufficient cpu" in found.lacking


GPU_SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=4)
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
@given(sizes=GPU_SIZES, taken=TAKEN, asked=ASKED)
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
        bound = gang_bound.most_placed(specs, ledger, Predicates([node]), len(asked))
    assert bound >= most(free, tuple(gib for gib, _ in asked))


EARLIER, THEN, LATER = "2030-01-01T00:00:00Z", "2030-01-01T00:00:05Z", "2030-01-01T00:01:00Z"
A_YEAR_BEFORE_NS, A_YEAR_AFTER_NS = 1_861_920_000 * 10**9, 1_924_992_000 * 10**9


def waiting(created: str, plan: str = "") -> Pod:
    found = pod("waits", mem=1)
    found.metadata.creation_timestamp = created
    return _planned(found, plan)


def done(bound_at: str, plan: str = "", assumed_ns: int = 0) -> Pod:
    """A pod that succeeded; ``assumed_ns`` is what the extender's clock said when it was bound."""
    found = pod("done", mem=1, node="n", phase="Succeeded")
    allocation = decode_allocation(allocation_text(share("g-0", 1024)))
    found.metadata.annotations[ALLOCATION_ANNOTATION] = encode_allocation(allocation.decided_at(assumed_ns))
    if bound_at:
        found.status.conditions = (PodCondition(type="PodScheduled", status="True", last_transition_time=bound_at),)
    return _planned(found, plan)


def _planned(found: Pod, plan: str) -> Pod:
    if plan:
        found.metadata.annotations[RESERVATION_ANNOTATION] = encode_reservation(Reservation(plan, 2, 2, "n", 0))
    return found


def names(found: Sequence[Pod]) -> list[str]:
    return [each.metadata.name for each in found]


@pytest.mark.requirement("M13", "B5")
@pytest.mark.parametrize("assumed_ns", [A_YEAR_BEFORE_NS, A_YEAR_AFTER_NS])
def test_a_pod_that_succeeded_counts_for_pods_that_existed_when_it_was_bound(assumed_ns: int) -> None:
    assert names(started([waiting(EARLIER), done(THEN, assumed_ns=assumed_ns)])) == ["done"]
    assert not started([waiting(LATER), done(THEN, assumed_ns=assumed_ns)])


@pytest.mark.requirement("M13", "B5")
def test_a_pod_that_succeeded_counts_for_pods_of_its_plan_where_clocks_of_api_servers_differ() -> None:
    assert names(started([waiting(LATER, plan="1"), done(THEN, plan="1")])) == ["done"]
    assert not started([waiting(LATER, plan="2"), done(THEN, plan="1")])


@pytest.mark.requirement("M13", "B5")
def test_a_pod_of_which_nobody_says_when_it_was_bound_counts_for_none() -> None:
    assert not started([waiting(EARLIER), done("")])


@pytest.mark.requirement("M13", "B5")
def test_of_the_conditions_the_one_of_the_binding_is_kept() -> None:
    """Objects of tens of thousands of pods stay in memory."""
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": LATER, "lastProbeTime": None}
    told = {"status": {"phase": "Running", "conditions": [ready, {**ready, "type": "PodScheduled"}]}}
    found = msgspec.json.decode(msgspec.json.encode(told), type=Pod)
    assert found.bound_at == LATER
    assert len(found.status.conditions) == 1
    told["status"]["conditions"] = [{**ready, "type": "PodScheduled", "status": "False"}]
    assert not msgspec.json.decode(msgspec.json.encode(told), type=Pod).bound_at
