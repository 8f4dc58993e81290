"""What is known of bound pods goes with them, and budgets count their evictions as the API server does."""

from typing import Any

import msgspec
import pytest

from gputile.api.core import Pod, PodStatus
from gputile.api.webhooks import ExtenderPreemptionArgs, MetaPod, MetaVictims
from gputile.api.well_known import POD_GROUP_LABEL
from gputile.api.workloads import PodDisruptionBudget
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.controlplane.extender.binder import Binder
from gputile.controlplane.extender.handlers import ExtenderHandlers
from gputile.core.devices.gang_membership import GangName
from gputile.core.scheduling.eviction_rules import EvictionBudget, EvictionRules
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject
from tests.fakes.corebuilders import book, ledger_of, share
from tests.unit.controlplane.extender.builders import gpu_node, gpu_pod
from tests.unit.controlplane.extender.cluster import Fate, ModelCluster

pytestmark = pytest.mark.requirement("B5")


def member(name: str, gang: str = "g") -> Pod:
    pod = gpu_pod(name)
    pod.spec.node_name = "n"
    pod.metadata.labels = {POD_GROUP_LABEL: gang}
    return pod


def test_bound_pods_with_gpus_are_known_by_their_gang_until_they_are_gone() -> None:
    pods, gang = EvictablePods(lambda uid: uid != "uid-plain"), GangName("default", "g", True)
    waiting = member("waiting")
    waiting.spec.node_name = ""
    for pod in (member("a"), member("b"), member("plain"), waiting):
        pods.pod_applied(pod)
    assert pods.gangs == {gang: {"uid-a", "uid-b"}}
    pods.pod_applied(member("a", "h"))
    assert pods.gangs[gang] == {"uid-b"}
    pods.pod_applied(member("c"))
    pods.pod_deleted("uid-a")
    assert pods.uids() == {"uid-b", "uid-c"}
    assert pods.gangs == {gang: {"uid-b", "uid-c"}}
    for uid in ("uid-b", "uid-c", "uid-c"):
        pods.pod_deleted(uid)
    assert (pods.facts, pods.gangs) == ({}, {})


def held(name: str, labels: dict[str, str] | None = None, namespace: str = "default") -> Pod:
    pod = gpu_pod(name, namespace=namespace)
    pod.spec.node_name = "a"
    pod.metadata.labels = {"app": "x"} if labels is None else labels
    return pod


def budget(
    allowed: int, selector: Any = "", disrupted: dict[str, str] | None = None, **meta: str
) -> PodDisruptionBudget:
    body: dict[str, Any] = {
        "metadata": {"name": "b", "namespace": "default", **meta},
        "spec": {"selector": {"matchLabels": {"app": "x"}} if selector == "" else selector},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": disrupted},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=PodDisruptionBudget)


def budgets_of(*found: PodDisruptionBudget, pods: int = 5, **labels: dict[str, str]) -> EvictablePods:
    budgets = EvictablePods(lambda _: True)
    budgets.budget_event(Replaced(list(found), []))
    for i in range(pods):
        budgets.pod_applied(held(f"p{i}", labels.get(f"p{i}")))
    return budgets


def uids(*numbers: int) -> list[str]:
    return [f"uid-p{i}" for i in numbers]


def over(budgets: EvictablePods, *numbers: int) -> list[str]:
    """Return the pods that no budget lets go after the others before them."""
    return EvictionRules({}, {}, budget=budgets.budget).over_budget(uids(*numbers))


def test_budgets_and_pods_come_and_go() -> None:
    budgets = budgets_of(budget(0), p1={})
    assert over(budgets, 0, 1, 99) == uids(0), "a pod without labels is in no budget"
    budgets.budget_event(UnreadableObject("default", "b", "u", "nonsense"))
    assert over(budgets, 0) == uids(0)
    budgets.budget_event(Replaced([], [UnreadableObject("default", "b", "u", "nonsense")]))
    assert over(budgets, 0) == uids(0), "the last word stands"
    budgets.budget_event(Deleted(budget(0)))
    assert over(budgets, 0) == []
    budgets.budget_event(Applied(budget(0)))
    assert over(budgets, 0) == uids(0)
    budgets.pod_deleted("uid-p0")
    assert over(budgets, 0) == []


@pytest.mark.anyio
@pytest.mark.requirement("B5")
async def test_what_preempt_adds_counts_b5() -> None:
    """kube-scheduler proposes a pod on one GPU; the extender adds one on the other, whose budget is used up."""
    ledger = ledger_of(gpu_node("a"))
    for i in range(4):
        book(ledger, f"uid-p{i}", "a", share(f"GPU-a-{i // 2}", 7 * 1024))
        ledger.confirm(f"uid-p{i}")
    engine, cluster = PlacementEngine(ledger), ModelCluster(lambda: Fate.OK)
    verbs = ExtenderHandlers(
        engine,
        Binder(engine, cluster, lambda: 0.0, lambda: 1),
        lambda _: None,
        lambda: None,
        evictable=budgets_of(budget(1)),
    )
    proposed = MetaVictims(pods=[MetaPod(uid="uid-p0")], num_pdb_violations=0)
    asking = gpu_pod("urgent", 15, priority=10)
    answer = (
        await verbs.preempt(ExtenderPreemptionArgs(pod=asking, node_name_to_meta_victims={"a": proposed}))
    ).node_name_to_meta_victims["a"]
    assert [pod.uid for pod in answer.pods or []] == uids(0, 1)
    assert answer.num_pdb_violations == 1


@pytest.mark.parametrize(
    ("phase", "deleted", "guards"),
    [("Running", None, True), ("Pending", None, False), ("Running", "2030-01-01T00:00:00Z", False)],
)
def test_no_budget_guards_a_pod_that_does_not_run_yet_or_leaves(phase: str, deleted: str | None, guards: bool) -> None:
    """As ``canIgnorePDB`` of the API server's eviction."""
    budgets, pod = budgets_of(budget(0), pods=0), held("p0")
    pod.status.phase, pod.metadata.deletion_timestamp = phase, deleted
    budgets.pod_applied(pod)
    assert over(budgets, 0) == (uids(0) if guards else [])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([budget(0)], [0, 1]),
        ([budget(1)], [1]),
        ([budget(0, None)], []),
        ([budget(0, {})], [0, 1, 2]),
        ([budget(1, {})], [1, 2]),
        ([budget(5), budget(5, name="c")], [0, 1]),
        ([budget(5), budget(5, {}, name="c")], [0, 1]),
        ([budget(0, {}, namespace="other")], []),
        ([budget(0, disrupted={"p1": "2026-01-01T00:00:00Z"})], [0]),
        ([budget(0, {"matchExpressions": [{"key": "app", "operator": "Exists"}]})], [0, 1]),
    ],
)
def test_what_the_api_server_does_not_evict(found: list[PodDisruptionBudget], expected: list[int]) -> None:
    """Its getPodDisruptionBudgets: an empty selector selects all, and no pod of several budgets is evicted."""
    assert over(budgets_of(*found, p2={}), 0, 1, 2) == uids(*expected)


@pytest.mark.parametrize(
    ("policy", "healthy", "desired", "ready", "guarded"),
    [
        ("AlwaysAllow", 0, 2, False, False),
        ("AlwaysAllow", 0, 2, True, True),
        ("IfHealthyBudget", 1, 2, False, True),
        ("IfHealthyBudget", 2, 2, False, False),
        ("IfHealthyBudget", 2, 2, True, True),
        ("", 2, 2, False, False),
        ("", 0, 0, False, True),
    ],
)
def test_a_pod_that_is_not_ready(policy: str, healthy: int, desired: int, ready: bool, guarded: bool) -> None:
    """KEP-3017; one of several budgets stays all the same."""
    found = budget(0)
    found.spec.unhealthy_pod_eviction_policy = policy
    found.status.current_healthy, found.status.desired_healthy = healthy, desired
    pod = held("p0")
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    pod.status = msgspec.structs.replace(msgspec.convert(status, PodStatus))  # a copy says the same
    budgets = budgets_of(found, pods=0)
    budgets.pod_applied(pod)
    assert over(budgets, 0) == (uids(0) if guarded else [])
    budgets.budget_event(Applied(budget(5, {}, name="c")))
    assert over(budgets, 0) == uids(0)


def test_pods_of_a_namespace_with_very_many_budgets_are_guarded() -> None:
    """To find out which select them would take as long as somebody likes who may create budgets."""
    none = {"matchLabels": {"app": "x", "tier": "back"}}
    few, many = ([budget(9, none, name=f"b{number}") for number in range(count)] for count in (9, 300))
    assert budgets_of(*few).budget("uid-p0") is None
    assert budgets_of(*many).budget("uid-p0") == EvictionBudget(("default", "b0"), 0)


def test_a_snapshot_of_bound_pods_stays_as_it_is() -> None:
    pods, gang = EvictablePods(lambda _: True), GangName("default", "g", True)
    pods.pod_applied(member("a"))
    before = pods.snapshot()
    pods.pod_applied(member("b"))
    after = pods.snapshot()
    pods.pod_deleted("uid-a")
    assert [each.gangs[gang] for each in (before, after, pods)] == [{"uid-a"}, {"uid-a", "uid-b"}, {"uid-b"}]
    assert [set(each.facts) for each in (before, after, pods)] == [{"uid-a"}, {"uid-a", "uid-b"}, {"uid-b"}]
