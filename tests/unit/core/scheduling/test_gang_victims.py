"""Who leaves for a gang: enough for all of it, or nobody; judged by arithmetic on cases small enough to try all."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import Node, Pod
from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL, GPU_MEMORY
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.scheduling.eviction_rules import EvictionBudget, EvictionRules
from gputile.core.scheduling.gang_plan import GangCandidate
from gputile.core.scheduling.gang_victims import GangVictims, VictimSearchInput, choose_gang_victims, is_enough
from gputile.core.scheduling.placement_engine import PlacementEngine
from tests.fakes.corebuilders import container, gpu_node, ledger_of, pod, request_of
from tests.unit.core.scheduling.test_victim_choice import Cluster as Held
from tests.unit.core.scheduling.test_victim_choice import subsets

pytestmark = pytest.mark.requirement("B5", "M13")

GIB = 1024
SIZE = 15  # GiB of each GPU
GPUS = 2
NOW_NS = 1_800_000_000 * 10**9


def node(name: str, cpu: str = "99", gpus: int = GPUS) -> Node:
    amounts = {"cpu": cpu, "pods": "99", GPU_MEMORY: "999"}
    return gpu_node(name, mode="cgpu", sizes=[SIZE * GIB] * gpus, allocatable=amounts)


class Cluster(Held):
    """Nodes with bound pods, and a gang that asks for room."""

    allowed = 1000  # evictions, by one budget for all

    def ground(self) -> VictimSearchInput:
        predicates = Predicates(self.nodes)
        for bound in self.pods.values():
            predicates.place(bound, bound.spec.node_name)
        return VictimSearchInput(self.engine(), predicates, Predicates(self.nodes), self.pods)

    def in_budget(self) -> EvictionRules:
        return replace(self.rules(), budget=lambda _: EvictionBudget("all", self.allowed))

    def choose_for(self, *gang: Pod) -> GangVictims | None:
        members = [GangCandidate(each, request_of(each)) for each in gang]
        ground = self.ground()
        before = state(ground)
        found = choose_gang_victims(members, len(members), ground, self.in_budget(), NOW_NS)
        assert state(ground) == before, "all is as it was"
        return found

    def held(self, gone: Iterable[str] = ()) -> Counter[str]:
        """Return how many GiB of each GPU bound pods hold, without those that are gone."""
        held: Counter[str] = Counter()
        ledger = self.ground().engine.ledger
        for booking in ledger.bookings():
            if booking.uid not in gone:
                held.update({each.uuid: each.mib // GIB for each in booking.gpus})
        return held


def state(ground: VictimSearchInput) -> object:
    ledger = ground.engine.ledger
    arrays = ledger.node_arrays
    bookings = sorted((each.uid, each.node, each.gpus) for each in ledger.bookings())
    spare = {name: [each.metadata.uid for each in ground.predicates.pods_on(name)] for name in ledger.row_of}
    return bookings, arrays.used.tolist(), arrays.pods.tolist(), arrays.percent.tolist(), spare


def gang(count: int, gib: int, priority: int = 10, *, gpus: int = 1, cpu: str = "", name: str = "g") -> list[Pod]:
    asks = {GPU_MEMORY: gib * gpus} | ({"cpu": cpu} if cpu else {})
    pods = [pod(f"{name}-{i}", container(asks=asks), count=gpus) for i in range(count)]
    for each in pods:
        each.spec.priority = priority
    return pods


def room(cluster: Cluster, gib: int, gone: Iterable[str]) -> int:
    """Return how many pods of so many GiB have room once some have gone."""
    held = cluster.held(set(gone))
    uuids = [f"GPU-{each.metadata.name}-{i}" for each in cluster.nodes for i in range(GPUS)]
    return sum(max(0, SIZE - held[uuid]) // gib for uuid in uuids)


pods_on_gpus = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, GPUS - 1), st.integers(1, 9), st.integers(0, 3)), max_size=8
)


@given(pods_on_gpus, st.integers(1, 15), st.integers(1, 4), st.integers(0, 8))
def test_the_victims_are_enough_for_all_of_the_gang_and_of_the_lowest_priority(
    held: list[tuple[str, int, int, int]], gib: int, count: int, allowed: int
) -> None:
    """Against every set of pods that may leave."""
    cluster = Cluster([node("a"), node("b")])
    cluster.allowed = allowed
    taken: Counter[tuple[str, int]] = Counter()
    for i, (on, gpu, size, priority) in enumerate(held):
        if taken[on, gpu] + size <= SIZE:
            taken[on, gpu] += size
            cluster.add(str(i), on, [gpu], size, priority=priority)
    lower = [uid for uid, bound in cluster.pods.items() if (bound.spec.priority or 0) < 2]
    found = cluster.choose_for(*gang(count, gib, 2))
    enough = [gone for gone in subsets(lower) if len(gone) <= allowed and room(cluster, gib, gone) >= count]
    if found is None:
        assert not [gone for gone in enough if allowed >= len(lower)]
        return
    assert len(found.places) == count
    assert set(found.evicted) <= set(lower)
    assert len(found.evicted) <= allowed
    holding = cluster.held(found.evicted)
    for place in found.places.values():
        holding.update({gpu.uuid: gib for gpu in place.gpus})
    assert max(holding.values()) <= SIZE, "no GPU has more than it has"

    def highest(uids: Iterable[str]) -> int:
        return max((cluster.pods[uid].spec.priority or 0 for uid in uids), default=-1)

    if allowed >= len(lower):
        assert highest(found.evicted) == min(highest(gone) for gone in enough)
    assert not any(room(cluster, gib, set(found.evicted) - {uid}) >= count for uid in found.evicted) or (
        found.evicted and not _stays_beside(cluster, found, gib)
    )


def _stays_beside(cluster: Cluster, found: GangVictims, gib: int) -> bool:
    """Return whether one of the evicted could stay beside the places as they are."""
    for uid in found.evicted:
        holding = cluster.held(set(found.evicted) - {uid})
        for place in found.places.values():
            holding.update({gpu.uuid: gib for gpu in place.gpus})
        if max(holding.values()) <= SIZE:
            return True
    return False


def test_whole_cards_are_planned_over_nodes() -> None:
    cluster = Cluster([node("a"), node("b")])
    for name in "ab":
        for gpu in range(2):
            cluster.add(f"{name}-{gpu}", name, [gpu], 10)
    found = cluster.choose_for(*gang(2, SIZE, gpus=2))
    assert found is not None
    assert set(found.evicted) == set(cluster.pods)
    assert sorted(place.node for place in found.places.values()) == ["a", "b"]
    assert found.loss.pods == 4


@pytest.mark.parametrize("leaves", ["", "2027-01-15T07:00:00Z", "2027-01-15T23:00:00Z"])
def test_a_gang_leaves_whole_though_one_of_its_pods_never_goes(leaves: str) -> None:
    """That pod should be gone for an hour (its node is lost, say), or has many hours left."""
    cluster = Cluster([node("a", gpus=2), node("b", gpus=1)])
    labels = {GANG_NAME_LABEL: "v", GANG_SIZE_LABEL: "3"}
    cluster.add("v0", "a", [0], 10, labels=labels)
    cluster.add("v1", "a", [1], 10, labels=labels)
    cluster.add("v2", "b", [0], 10, labels=labels)
    if leaves:
        cluster.pods["v2"].metadata.deletion_timestamp = leaves
    found = cluster.choose_for(*gang(1, 12))
    assert found is not None
    assert set(found.evicted) == {"v0", "v1"} | ({"v2"} if not leaves else set())


def test_what_leaves_frees_cpu_too_and_nothing_is_planned_where_that_is_not_enough() -> None:
    cluster = Cluster([node("a", cpu="8"), node("b", cpu="8")])
    cluster.add("a-0", "a", [0], 10, cpu="1")
    cluster.add("a-1", "a", [1], 10, priority=10, cpu="6")
    for gpu in range(2):
        cluster.add(f"b-{gpu}", "b", [gpu], 10, cpu="4")
    found = cluster.choose_for(*gang(1, 12, cpu="4"))
    assert found is not None
    assert [place.node for place in found.places.values()] == ["b"]
    assert cluster.choose_for(*gang(3, 12, cpu="4")) is None


def test_reserved_places_are_enough_once_the_others_have_left() -> None:
    from gputile.core.devices.allocation import Reservation, encode_reservation

    cluster = Cluster([node("a")])
    cluster.add("v0", "a", [0], 10)
    cluster.add("v1", "a", [1], 10)
    members = gang(2, 12)
    found = cluster.choose_for(*members)
    assert found is not None
    ground = cluster.ground()
    configuration = msgspec.structs.replace(
        ground.engine.ledger.configuration,
        admission=msgspec.structs.replace(ground.engine.ledger.configuration.admission, gangs=True),
    )
    ledger = ledger_of(*cluster.nodes, configuration=configuration)
    for bound in cluster.pods.values():
        ledger.apply_pod(bound)
    for each in members:
        place = found.places[each.metadata.uid]
        text = encode_reservation(Reservation("plan", 2, 2, place.node, NOW_NS + 10**11, place.allocation))
        each.metadata.annotations = {"gputile.io/hold": text}
        ledger.apply_pod(each)
    ground = VictimSearchInput(PlacementEngine(ledger), ground.predicates, ground.empty, cluster.pods)
    places = {booking.uid: booking for booking in ledger.bookings() if booking.reserved}
    assert len(places) == 2
    before = state(ground)
    planned = [(each, found.places[each.metadata.uid].node) for each in members]
    assert is_enough(places, planned, {"v0", "v1"}, ground, cluster.in_budget(), NOW_NS)
    assert not is_enough(places, planned, {"v0"}, ground, cluster.in_budget(), NOW_NS)
    assert state(ground) == before


@pytest.mark.parametrize("important", [True, False], ids=["it may not leave whole", "it may"])
def test_a_gang_that_lets_one_pod_go_lets_only_one_go_for_all_that_preempt(important: bool) -> None:
    """For each pod that preempts one of its pods would do, and it can do without one."""
    cluster = Cluster([node("a", gpus=1), node("b", gpus=1), node("c", gpus=1)])
    for i, on in enumerate("abc"):
        labels = {GANG_NAME_LABEL: "v", GANG_SIZE_LABEL: "2"}
        cluster.add(f"v{i}", on, [0], 15, priority=10 if important and i == 2 else 0, labels=labels)
    one = cluster.choose_for(*gang(1, 15))
    assert one is not None
    assert len(one.evicted) == 1
    both = cluster.choose_for(*gang(2, 15))
    if important:
        assert both is None
    else:
        assert both is not None
        assert set(both.evicted) == {"v0", "v1", "v2"}
