"""The victims are enough, none is to spare, and no others are a smaller loss, on cases small enough to try all."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.core import Node, Pod
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    DELETION_COST_ANNOTATION,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_MEMORY,
    POD_GROUP_LABEL,
    WHOLE_GPU,
)
from gputile.core.devices.gang_membership import GangName
from gputile.core.scheduling.eviction_rules import MOST_GRACE_S, EvictionBudget, EvictionRules, Loss, eviction_facts
from gputile.core.scheduling.freeable_gpus import VictimChoice
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.victim_choice import Preemptor, VictimSearch
from tests.conftest import examples
from tests.fakes.corebuilders import (
    allocation_text,
    container,
    fits_without,
    gpu_node,
    ledger_of,
    pod,
    request_of,
    share,
)

pytestmark = pytest.mark.requirement("B5")


def choose_victims(
    engine: PlacementEngine, preemptor: Preemptor, names: Iterable[str], rules: EvictionRules
) -> VictimChoice | None:
    search = VictimSearch(engine, preemptor, rules)
    return min(filter(None, map(search.on_node, names)), key=lambda each: each.loss, default=None)


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
        cpu: str = "",
    ) -> None:
        shares = tuple(share(f"GPU-{node}-{gpu}", gib * GIB) for gpu in gpus)
        asks = {GPU_MEMORY: gib * len(gpus)} | ({"cpu": cpu} if cpu else {})
        bound = pod(uid, container(asks=asks), count=len(gpus), node=node)
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
            ledger.apply_pod(bound)
        return PlacementEngine(ledger)

    def rules(self, evicted: Collection[str] = (), forbidden: Collection[str] = ()) -> EvictionRules:
        facts = {uid: eviction_facts(bound) for uid, bound in self.pods.items()}
        gangs: dict[GangName, set[str]] = {}
        for uid, each in facts.items():
            if each.gang is not None:
                gangs.setdefault(each.gang, set()).add(uid)
        return EvictionRules(facts, gangs, evicted, lambda uid: EvictionBudget(uid, 0) if uid in forbidden else None)

    def choose(
        self, asking: Pod, priority: int = 10, *, evicted: Collection[str] = (), forbidden: Collection[str] = ()
    ) -> VictimChoice | None:
        preemptor = Preemptor(asking.metadata.uid, request_of(asking), priority, NOW_S)
        names = [node.metadata.name for node in self.nodes]
        return choose_victims(self.engine(), preemptor, names, self.rules(evicted, forbidden))


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


def check_best(
    cluster: Cluster,
    asking: Pod,
    priority: int,
    rules: EvictionRules | None = None,
    allowed: Callable[[Collection[str]], bool] | None = None,
    loss: Callable[[Cluster, Iterable[str]], Loss] = loss_of,
) -> None:
    """Compare the choice with every set of pods of lower priority that may leave.

    For two GPUs at once, and where not all may leave, only the priority is the lowest; where both is so, an enough set
    may be missed.
    """
    engine, request = cluster.engine(), request_of(asking)
    names = [node.metadata.name for node in cluster.nodes]

    def fits(node: str, gone: Iterable[str]) -> bool:
        return fits_without(engine.ledger, request, node, gone)

    if any(fits(node, ()) for node in names):
        return  # nobody searches for victims then
    preemptor = Preemptor(asking.metadata.uid, request, priority, NOW_S)
    choice = choose_victims(engine, preemptor, names, rules or cluster.rules())
    lower = [uid for uid, bound in cluster.pods.items() if (bound.spec.priority or 0) < priority]
    enough = [
        gone
        for gone in subsets(lower)
        if (allowed is None or allowed(gone)) and any(fits(node, gone) for node in names)
    ]
    if choice is None:
        assert not enough or (request.shape.gpus > 1 and allowed is not None)
        return
    assert len(choice.evicted) == len(set(choice.evicted))
    assert set(choice.evicted) <= set(lower)
    assert allowed is None or allowed(choice.evicted)
    assert fits(choice.node, choice.evicted)
    assert choice.loss == loss(cluster, choice.evicted)
    best = min(loss(cluster, gone) for gone in enough)
    if request.shape.gpus == 1 and allowed is None:
        assert choice.loss[:2] == best[:2], "the priority, and how many leave"
    elif request.shape.gpus == 1 or allowed is None:
        assert choice.loss[:1] == best[:1]


@given(pods_on_gpus, st.integers(1, 15), st.integers(1, 2))
def test_no_other_victims_are_better(held: list[tuple[str, int, int, int, int]], gib: int, count: int) -> None:
    cluster = Cluster([two_gpus("a"), two_gpus("b")])
    for i, (node, gpu, size, priority, cost) in enumerate(held):
        cluster.add(str(i), node, [gpu], size, priority=priority, cost=cost, age_s=100 * i)
    check_best(cluster, pod("high", mem=gib * count, count=count), 2)


guarded_pods = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 6), st.integers(0, 2), st.sampled_from(["", "x", "y"])), max_size=8
)


@given(guarded_pods, st.integers(0, 2), st.integers(0, 2), st.integers(1, 15), st.integers(1, 2))
def test_no_other_victims_within_budgets_are_better(
    held: list[tuple[int, int, int, str]], x_allows: int, y_allows: int, gib: int, count: int
) -> None:
    """For one GPU nobody is found only where no set of pods that the budgets let go is enough."""
    cluster = Cluster([two_gpus()])
    for i, (gpu, size, priority, _) in enumerate(held):
        cluster.add(str(i), "n", [gpu], size, priority=priority, age_s=100 * i)
    allows, budget_of = {"x": x_allows, "y": y_allows}, {str(i): each[3] for i, each in enumerate(held)}

    def budget(uid: str) -> EvictionBudget | None:
        return EvictionBudget(budget_of[uid], allows[budget_of[uid]]) if budget_of[uid] else None

    def lets_go(gone: Iterable[str]) -> bool:
        counted = Counter(budget_of[uid] for uid in gone)
        return all(counted[name] <= allows[name] for name in allows)

    rules = replace(cluster.rules(), budget=budget)
    check_best(cluster, pod("high", mem=gib * count, count=count), 3, rules, lets_go)


def test_nobody_leaves_a_gpu_that_another_victim_has_made_needless() -> None:
    """The pod on one GPU goes first as the cheapest; the one on the two others makes these free at once."""
    cluster = Cluster([gpu_node("n", mode="cgpu", sizes=[15 * GIB] * 3)])
    cluster.add("small", "n", [0], 1)
    cluster.add("full0", "n", [0], 13, priority=20)
    cluster.add("both", "n", [1, 2], 2)
    for gpu in (1, 2):
        cluster.add(f"full{gpu}", "n", [gpu], 12, priority=20)
    choice = cluster.choose(pod("high", mem=4, count=2))
    assert choice is not None
    assert choice.evicted == ("both",)
    assert sorted(gpu.index for gpu in choice.gpus) == [1, 2]


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


@pytest.mark.parametrize(("seconds", "evicted"), [(3600, ()), (2 * 3600, ("staying",)), (365 * 86400, ("staying",))])
def test_who_leaves_in_a_long_time_is_nobody_to_wait_for(seconds: int, evicted: tuple[str, ...]) -> None:
    cluster = Cluster([two_gpus()])
    cluster.add("leaving", "n", [0], 10)
    cluster.add("staying", "n", [1], 10)
    cluster.pods["leaving"].metadata.deletion_timestamp = _timestamp(NOW_S + seconds)
    choice = cluster.choose(pod("high", mem=12))
    assert choice is not None
    assert choice.evicted == evicted


@pytest.mark.parametrize("gang", [False, True])
def test_who_may_take_longer_than_a_day_to_leave_is_not_evicted(gang: bool) -> None:
    cluster = Cluster([two_gpus()])
    labels = {GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "1"} if gang else {}
    cluster.add("slow", "n", [0], 10, labels=labels)
    cluster.add("dear", "n", [1], 10, cost=99)
    cluster.pods["slow"].spec.termination_grace_period_seconds = MOST_GRACE_S + 1
    choice = cluster.choose(pod("high", mem=12))
    assert choice is not None
    assert choice.evicted == ("dear",)
    assert cluster.choose(pod("high", mem=12), forbidden=["dear"]) is None


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


def gang_of_four(labels: dict[str, str]) -> Cluster:
    """Four pods of a gang, the shortest and the longest running on GPU 0, the others on GPU 1."""
    cluster = Cluster([two_gpus()])
    for i in range(4):
        cluster.add(f"v{i}", "n", [i % 2], 7, age_s=1000 + i, labels=labels)
    return cluster


@pytest.mark.parametrize("allowed", [2, 4], ids=lambda allowed: f"a budget of {allowed}")
def test_a_gang_lets_as_many_go_as_it_does_not_need_whichever_they_are(allowed: int) -> None:
    cluster = gang_of_four({GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "2"})
    rules = replace(cluster.rules(), budget=lambda _: EvictionBudget("all", allowed))
    preemptor = Preemptor("high", request_of(pod("high", mem=15)), 10, NOW_S)
    choice = choose_victims(cluster.engine(), preemptor, ["n"], rules)
    assert choice is not None
    assert sorted(choice.evicted) == ["v0", "v2"]
    assert choice.loss == loss_of(cluster, ["v0", "v2"])
    both = Preemptor("high", request_of(pod("high", mem=30, count=2)), 10, NOW_S)
    found = choose_victims(cluster.engine(), both, ["n"], rules)
    if allowed < 4:
        assert found is None
        return
    assert found is not None
    assert sorted(found.evicted) == ["v0", "v1", "v2", "v3"]
    assert found.loss == loss_of(cluster, found.evicted)


def test_a_gang_by_pod_group_lets_go_whom_its_group_does_not_need() -> None:
    cluster = gang_of_four({POD_GROUP_LABEL: "g"})
    preemptor = Preemptor("high", request_of(pod("high", mem=15)), 10, NOW_S)
    for size, evicted in (0, 4), (2, 2), (3, 4):
        rules = replace(cluster.rules(), gang_size={GangName("default", "g", True): size}.__getitem__)
        choice = choose_victims(cluster.engine(), preemptor, ["n"], rules)
        assert choice is not None
        assert len(choice.evicted) == len({*choice.evicted}) == evicted


gang_pods = st.lists(
    st.tuples(
        st.sampled_from("aaab"), st.integers(0, 1), st.integers(2, 7), st.integers(0, 2), st.sampled_from("-xxxy")
    ),
    min_size=4,
    max_size=8,
)


@settings(max_examples=examples(500))
@given(gang_pods, st.integers(1, 4), st.integers(8, 15), st.integers(1, 2))
def test_gangs_leave_whole_or_as_many_as_they_let_go(
    held: list[tuple[str, int, int, int, str]], size: int, gib: int, count: int
) -> None:
    """Each gang stays whole, leaves whole, or loses no more than it lets go."""
    cluster = Cluster([two_gpus("a"), two_gpus("b")])
    members: dict[str, set[str]] = {}
    for i, (node, gpu, gib_held, priority, gang) in enumerate(held):
        labels = {GANG_NAME_LABEL: gang, GANG_SIZE_LABEL: str(size)} if gang != "-" else {}
        cluster.add(str(i), node, [gpu], gib_held, priority=priority, age_s=100 * i, labels=labels)
        if labels:
            members.setdefault(gang, set()).add(str(i))

    def allowed(gone: Iterable[str]) -> bool:
        leaving = [(len(each & set(gone)), len(each)) for each in members.values()]
        return all(out in (0, every) or every - out >= size for out, every in leaving)

    check_best(cluster, pod("high", mem=gib * count, count=count), 2, None, allowed)


REPLICAS = 3
sliced_pods = st.lists(
    st.tuples(st.sets(st.integers(0, 1), min_size=1), st.integers(0, 3), st.sampled_from("xxy")), max_size=7
)


@settings(max_examples=examples(300))
@given(sliced_pods, st.sampled_from([[1], [2], [1, 1], [1, 1, 1]]))
def test_on_gpus_in_turns_no_other_victims_are_better(held: list[tuple[set[int], int, str]], counts: list[int]) -> None:
    """Each of two GPUs three times, to pods of one namespace."""
    cluster = Cluster([gpu_node("n", mode="default", sizes=[15 * GIB] * 2, replicas=REPLICAS)])
    on_gpu: dict[int, list[str]] = {0: [], 1: []}
    for i, (gpus, priority, namespace) in enumerate(held):
        if any(len(on_gpu[gpu]) == REPLICAS or {*on_gpu[gpu]} - {namespace} for gpu in gpus):
            continue
        text = allocation_text(*(share(f"GPU-n-{gpu}", 15 * GIB) for gpu in sorted(gpus)), whole=True)
        asks = {WHOLE_GPU: len(gpus)}
        bound = pod(str(i), asks=asks, node="n", namespace=namespace, annotations={ALLOCATION_ANNOTATION: text})
        bound.spec.priority = priority
        cluster.pods[str(i)] = bound
        for gpu in gpus:
            on_gpu[gpu].append(namespace)

    def loss(cluster: Cluster, uids: Iterable[str]) -> Loss:
        priorities = [cluster.pods[uid].spec.priority or 0 for uid in uids]
        return Loss(max(priorities), len(priorities)) if priorities else Loss()

    containers = (container(f"c{i}", asks={WHOLE_GPU: count}) for i, count in enumerate(counts))
    check_best(cluster, pod("high", *containers, namespace="x"), 2, loss=loss)


def test_one_pod_leaves_a_gpu_in_turns_and_loses_its_part_of_the_time() -> None:
    cluster = Cluster([gpu_node("n", mode="default", sizes=[15 * GIB], replicas=4)])
    for i in range(4):
        text = allocation_text(share("GPU-n-0", 15 * GIB), whole=True)
        bound = pod(str(i), asks={WHOLE_GPU: 1}, node="n", annotations={ALLOCATION_ANNOTATION: text})
        bound.metadata.creation_timestamp = _timestamp(NOW_S - 100 * (i + 1))
        cluster.pods[str(i)] = bound
    choice = cluster.choose(pod("high", asks={WHOLE_GPU: 1}))
    assert choice is not None
    assert choice.evicted == ("0",)
    assert choice.loss == Loss(0, 1, 0, 100 * 250)
