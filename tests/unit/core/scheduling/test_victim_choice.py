"""The victims are enough, none is to spare, and no others are a smaller loss, on cases small enough to try all."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import Node, Pod
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    DELETION_COST_ANNOTATION,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_MEMORY,
    POD_GROUP_LABEL,
)
from gputile.core.devices.gang_membership import GangName
from gputile.core.ledger.events import PodApplied
from gputile.core.placement.steps import at_once
from gputile.core.scheduling.decision import Decision
from gputile.core.scheduling.eviction_facts import eviction_facts
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.victim_choice import EvictionRules, Preemptor, choose_victims
from gputile.core.scheduling.victim_cover import Loss, VictimChoice
from tests.corebuilders import allocation_text, container, gpu_node, ledger_of, pod, request_of, share

pytestmark = pytest.mark.requirement("B5")

GIB = 1024
NOW_S = 1_800_000_000.0


@dataclass
class Cluster:
    """Nodes with bound pods, and what evicting them depends on."""

    nodes: Sequence[Node]
    pods: dict[str, Pod] = field(default_factory=dict)

    def add(
        self,
        uid: str,
        node: str,
        gpus: Sequence[int],
        gib: int,
        *,
        priority: int = 0,
        cost: int = 0,
        age_s: int = 0,
        labels: dict[str, str] | None = None,
    ) -> None:
        shares = tuple(share(f"GPU-{node}-{gpu}", gib * GIB) for gpu in gpus)
        bound = pod(uid, container(asks={GPU_MEMORY: gib * len(gpus)}), count=len(gpus), node=node)
        bound.metadata.annotations = {ALLOCATION_ANNOTATION: allocation_text(*shares)}
        if cost:
            bound.metadata.annotations[DELETION_COST_ANNOTATION] = str(cost)
        if age_s:
            bound.metadata.creation_timestamp = _timestamp(NOW_S - age_s)
        bound.metadata.labels = bound.metadata.labels | (labels or {})
        bound.spec.priority = priority
        self.pods[uid] = bound

    def engine(self) -> PlacementEngine:
        ledger = ledger_of(*self.nodes)
        for bound in self.pods.values():
            ledger.apply(PodApplied(bound))
        return PlacementEngine(ledger)

    def rules(self, evicted: Collection[str] = (), forbidden: Collection[str] = ()) -> EvictionRules:
        facts = {uid: eviction_facts(bound) for uid, bound in self.pods.items()}
        gangs: dict[GangName, set[str]] = {}
        for uid, each in facts.items():
            if each.gang is not None:
                gangs.setdefault(each.gang, set()).add(uid)
        return EvictionRules(facts, gangs, evicted, lambda uids: [uid for uid in uids if uid in forbidden])

    def choose(
        self, asking: Pod, priority: int = 10, *, evicted: Collection[str] = (), forbidden: Collection[str] = ()
    ) -> VictimChoice | None:
        preemptor = Preemptor(asking.metadata.uid, request_of(asking), priority, NOW_S)
        names = [node.metadata.name for node in self.nodes]
        return at_once(choose_victims(self.engine(), preemptor, names, self.rules(evicted, forbidden)))


def _timestamp(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def two_gpus(name: str = "n") -> Node:
    return gpu_node(name, mode="cgpu", sizes=[15 * GIB] * 2)


def subsets(uids: Iterable[str]) -> Iterable[tuple[str, ...]]:
    found = list(uids)
    return chain.from_iterable(combinations(found, size) for size in range(len(found) + 1))


def loss_of(cluster: Cluster, uids: Iterable[str]) -> Loss:
    loss = Loss()
    for uid in uids:
        bound, facts = cluster.pods[uid], eviction_facts(cluster.pods[uid])
        held = sum(1000 * each // 15 // GIB for each in _mib(bound))
        age = int(NOW_S - facts.started_at) if facts.started_at else 0
        loss = loss.plus(Loss(bound.spec.priority or 0, 1, facts.cost, age * held))
    return loss


def _mib(bound: Pod) -> list[int]:
    count = int(bound.metadata.labels.get("aliyun.com/gpu-count", "1"))
    units = int(bound.spec.containers[0].resources.limits[GPU_MEMORY])
    return [units // count * GIB] * count


pods_on_gpus = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(1, 9), st.integers(0, 3), st.integers(0, 2)),
    max_size=7,
)


@given(pods_on_gpus, st.integers(1, 15), st.integers(1, 2))
def test_no_other_victims_are_better(held: list[tuple[str, int, int, int, int]], gib: int, count: int) -> None:
    """Against every set of pods on both nodes. For two GPUs at once the order of the first two losses holds."""
    cluster = Cluster([two_gpus("a"), two_gpus("b")])
    for i, (node, gpu, size, priority, cost) in enumerate(held):
        cluster.add(str(i), node, [gpu], size, priority=priority, cost=cost, age_s=100 * i)
    asking = pod("high", mem=gib * count, count=count)
    engine, request = cluster.engine(), request_of(asking)

    def fits(node: str, gone: Iterable[str]) -> bool:
        return isinstance(engine.decide(request, node, 0, frozenset(gone)), Decision)

    choice = cluster.choose(asking, 2)
    if any(fits(node, ()) for node in "ab"):
        return  # nobody searches for victims then
    lower = [uid for uid, bound in cluster.pods.items() if (bound.spec.priority or 0) < 2]
    enough = [gone for gone in subsets(lower) if any(fits(node, gone) for node in "ab")]
    if choice is None:
        assert not enough
        return
    best = min(loss_of(cluster, gone) for gone in enough)
    assert set(choice.evicted) <= set(lower)
    assert fits(choice.node, choice.evicted)
    assert not any(fits(choice.node, set(choice.evicted) - {uid}) for uid in choice.evicted)
    assert choice.loss == loss_of(cluster, choice.evicted)
    if count == 1:
        assert choice.loss == best
    else:
        assert choice.loss[:1] == best[:1]


def test_four_gpus_of_which_none_has_room_free_one() -> None:
    """Enough in sum is what kube-scheduler sees, and evicts nobody for."""
    cluster = Cluster([gpu_node("n", mode="cgpu", sizes=[15 * GIB] * 4)])
    for gpu in range(4):
        cluster.add(f"p{gpu}", "n", [gpu], 10, age_s=1000 - gpu)
    choice = cluster.choose(pod("high", mem=12))
    assert choice is not None
    assert choice.evicted == ("p3",), "the one that has run for the shortest time"
    assert [gpu.index for gpu in choice.gpus] == [3]


def test_what_a_pod_says_of_its_loss_goes_before_its_age() -> None:
    cluster = Cluster([two_gpus()])
    cluster.add("dear", "n", [0], 10, cost=5, age_s=1)
    cluster.add("old", "n", [1], 10, age_s=10_000)
    choice = cluster.choose(pod("high", mem=12))
    assert choice is not None
    assert choice.evicted == ("old",)


def test_nobody_leaves_for_too_little() -> None:
    cluster = Cluster([two_gpus()])
    cluster.add("low", "n", [0], 5)
    cluster.add("same", "n", [0], 5, priority=10)
    cluster.add("other", "n", [1], 10, priority=10)
    assert cluster.choose(pod("high", mem=12)) is None
    assert cluster.choose(pod("high", mem=10)) is not None


def test_pods_that_leave_anyway_count_as_gone_unless_they_are_late() -> None:
    cluster = Cluster([two_gpus()])
    cluster.add("leaving", "n", [0], 10, priority=100)
    cluster.add("staying", "n", [1], 10)
    cluster.pods["leaving"].metadata.deletion_timestamp = _timestamp(NOW_S + 3600)
    choice = cluster.choose(pod("high", mem=12))
    assert choice is not None
    assert (choice.evicted, [gpu.index for gpu in choice.gpus]) == ((), [0])
    cluster.pods["leaving"].metadata.deletion_timestamp = _timestamp(NOW_S - 3600)
    late = cluster.choose(pod("high", mem=12))
    assert late is not None
    assert late.evicted == ("staying",)
    known = cluster.choose(pod("high", mem=12), evicted=["staying"])
    assert known is not None
    assert known.evicted == ()


@pytest.mark.parametrize("by_object", [False, True])
def test_a_gang_leaves_whole_and_counts_so(by_object: bool) -> None:
    labels = {POD_GROUP_LABEL: "g"} if by_object else {GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "3"}
    cluster = Cluster([two_gpus("a"), two_gpus("b")])
    for i, node in enumerate(("a", "a", "b")):
        cluster.add(f"g{i}", node, [i % 2], 10, labels=labels)
    cluster.add("s0", "b", [1], 8)
    cluster.add("s1", "b", [1], 7)
    for forbidden, evicted in ((), {"s0", "s1"}), (("s0",), {"g0", "g1", "g2"}):
        choice = cluster.choose(pod("high", mem=15), forbidden=forbidden)
        assert choice is not None
        assert set(choice.evicted) == evicted
    assert cluster.choose(pod("high", mem=15), forbidden=("s0", "g2")) is None
    cluster.pods["g2"].spec.priority = 10
    assert cluster.choose(pod("high", mem=15), forbidden=("s0",)) is None, "one of the gang may not be made to leave"


def test_a_gang_lets_go_whom_it_does_not_need() -> None:
    cluster = Cluster([two_gpus("a"), two_gpus("b")])
    for i, node in enumerate(("a", "a", "b", "b")):
        labels = {GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "3"}
        cluster.add(f"g{i}", node, [i % 2], 10, age_s=1000 - i, labels=labels)
    choice = cluster.choose(pod("high", mem=15))
    assert choice is not None
    assert choice.evicted == ("g3",)
    after = cluster.choose(pod("higher", mem=15), evicted=["g3"], forbidden=["g0"])
    assert after is not None
    assert after.evicted == (), "the GPU of the one that leaves is there"


def test_a_gang_on_both_gpus_of_a_request_leaves_once() -> None:
    cluster = Cluster([two_gpus("a"), two_gpus("b")])
    for i in range(2):
        cluster.add(f"g{i}", "a", [i], 10, labels={GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "2"})
    for i in range(2):
        cluster.add(f"s{i}", "b", [i], 8)
        cluster.add(f"t{i}", "b", [i], 7)
    choice = cluster.choose(pod("high", mem=30, count=2))
    assert choice is not None
    assert set(choice.evicted) == {"g0", "g1"}


def test_all_pods_of_another_trust_group_leave() -> None:
    cluster = Cluster([gpu_node("n", mode="share", sizes=[15 * GIB])])
    cluster.add("large", "n", [0], 5)
    cluster.add("small", "n", [0], 1)
    for each in cluster.pods.values():
        each.metadata.namespace = "other"
    choice = cluster.choose(pod("high", mem=1))
    assert choice is not None
    assert set(choice.evicted) == {"large", "small"}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 3), st.integers(1, 15))
def test_no_budget_is_violated(sizes: list[int], allowed: int, gib: int) -> None:
    """A budget that lets ``allowed`` pods go, whichever they are."""
    cluster = Cluster([two_gpus()])
    for i, size in enumerate(sizes):
        cluster.add(str(i), "n", [i % 2], size)
    cluster.add("full0", "n", [0], 3, priority=10)
    cluster.add("full1", "n", [1], 3, priority=10)
    rules = cluster.rules()
    rules = EvictionRules(rules.facts, rules.gangs, (), lambda uids: list(uids)[allowed:])
    preemptor = Preemptor("high", request_of(pod("high", mem=gib)), 10, NOW_S)
    choice = at_once(choose_victims(cluster.engine(), preemptor, ["n"], rules))
    assert choice is None or len(choice.evicted) <= allowed


def test_a_step_judges_one_node() -> None:
    cluster = Cluster([two_gpus(f"n{i:03}") for i in range(120)])
    for node in cluster.nodes:
        for gpu in range(2):
            cluster.add(f"{node.metadata.name}-{gpu}", node.metadata.name, [gpu], 10)
    preemptor = Preemptor("high", request_of(pod("high", mem=12)), 10, NOW_S)
    names = [node.metadata.name for node in cluster.nodes]
    steps = sum(1 for _ in choose_victims(cluster.engine(), preemptor, names, cluster.rules()))
    assert 100 <= steps <= 201
