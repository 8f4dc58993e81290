"""Places for gangs, against trying everything, and which pods count as started."""

from collections.abc import Collection, Sequence
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.affinity import Affinity
from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, Pod, PodCondition
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_MEMORY, RESERVATION_ANNOTATION, WHOLE_GPU
from gputile.core.devices.allocation import Reservation, decode_allocation, encode_allocation, encode_reservation
from gputile.core.devices.gang_membership import started_pods
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.gang_plan import GangCandidate, GangPlan, plan_gang
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from tests.conftest import examples
from tests.fakes.corebuilders import allocation_text, gpu_node, ledger_of, pod, share
from tests.stateful.ledgercheck import image

GIB = 1024
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
    state = ledger_of(each).state(each.metadata.name)
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
def test_a_gang_is_planned_only_where_trying_everything_finds_a_way_and_always_if_its_pods_are_alike(
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
    possible = try_everything([each for each in nodes if each.metadata.name not in names], wanted)
    assert found.fits <= possible
    if len(set(wanted)) == 1 and wanted[0][1] == 1:
        assert found.fits == possible
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


@pytest.mark.requirement("M13", "B5")
def test_a_gang_for_one_zone_starts_in_the_zone_that_is_large_enough() -> None:
    zone = "topology.kubernetes.io/zone"
    nodes = [node(name, "cgpu", [5] * 8, 99) for name in ("a0", "a1", "b0", "b1", "b2", "b3")]
    for each in nodes:
        each.metadata.labels[zone] = each.metadata.name[0]
    term = {"labelSelector": {"matchLabels": {"job": "g"}}, "topologyKey": zone}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pods = [asking(i, 5, 1) for i in range(17)]
    for each_pod in pods:
        each_pod.metadata.labels["job"] = "g"
        each_pod.spec.affinity = msgspec.convert(affinity, Affinity)
    found = plan(ledger_of(*nodes, configuration=CONFIGURATION), Predicates(nodes), pods, len(pods))
    assert {place.node[0] for place in found.places.values()} == {"b"}
    assert found.fits


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
    assert names(started_pods([waiting(EARLIER), done(THEN, assumed_ns=assumed_ns)])) == ["done"]
    assert not started_pods([waiting(LATER), done(THEN, assumed_ns=assumed_ns)])


@pytest.mark.requirement("M13", "B5")
def test_a_pod_that_succeeded_counts_for_pods_of_its_plan_where_clocks_of_api_servers_differ() -> None:
    assert names(started_pods([waiting(LATER, plan="1"), done(THEN, plan="1")])) == ["done"]
    assert not started_pods([waiting(LATER, plan="2"), done(THEN, plan="1")])


@pytest.mark.requirement("M13", "B5")
def test_a_pod_of_which_nobody_says_when_it_was_bound_counts_for_none() -> None:
    assert not started_pods([waiting(EARLIER), done("")])


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
