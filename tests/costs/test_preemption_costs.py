"""What preemption costs is bounded, whatever pods and budgets a tenant creates."""

from dataclasses import replace

import msgspec
import pytest

from gputile.api.core import Pod
from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.core.devices.gang_membership import GangName
from gputile.core.scheduling.eviction_rules import EvictionBudget, EvictionRules, eviction_facts
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.victim_choice import Preemptor, VictimSearch
from gputile.kube.objects import Replaced
from tests.costs.calls import calls
from tests.fakes.corebuilders import bound, gpu_node, ledger_of, pod, request_of
from tests.unit.controlplane.test_evictable_pods import budget

pytestmark = pytest.mark.requirement("B5")

GPUS, SIZE = 8, 64 * 1024


def choosing(pods: int, limits: str) -> int:
    """Return how many functions are called to choose who leaves a node with so many pods on each GPU."""
    ledger = ledger_of(gpu_node("n", mode="cgpu", sizes=[SIZE] * GPUS))
    held: dict[str, Pod] = {}
    for number in range(GPUS * pods):
        each = bound(f"v{number}", "n", number % GPUS, SIZE // pods // 1024)
        each.spec.priority = number * 31 % 97
        if limits == "gangs":
            each.metadata.labels = {GANG_NAME_LABEL: f"g{number * 7 % 11}", GANG_SIZE_LABEL: "2"}
        ledger.apply_pod(each)
        held[each.metadata.uid] = each
    facts = {uid: eviction_facts(each) for uid, each in held.items()}
    gangs: dict[GangName, set[str]] = {}
    for uid, known in facts.items():
        if known.gang is not None:
            gangs.setdefault(known.gang, set()).add(uid)
    rules, numbers = EvictionRules(facts, gangs), {uid: number for number, uid in enumerate(held)}
    if limits == "budgets":
        rules = replace(rules, budget=lambda uid: EvictionBudget(numbers[uid] * 5 % 7, 3 * pods // 2))
    preemptor = Preemptor("high", request_of(pod("high", mem=60 * 4, count=4)), 1000, 1_800_000_000.0)
    engine = PlacementEngine(ledger)
    found = []
    count = calls(lambda: found.append(VictimSearch(engine, preemptor, rules).on_node("n")))
    assert found[0] is not None
    return count


@pytest.mark.parametrize("limits", ["nothing", "budgets", "gangs"])
def test_who_leaves_a_node_is_chosen_in_time_that_grows_with_its_pods(limits: str) -> None:
    assert choosing(16, limits) < 2.5 * choosing(8, limits)


def test_no_more_than_some_budgets_are_looked_at_to_find_what_guards_a_pod() -> None:
    asked = {}
    for count in (256, 3_000):
        budgets = EvictablePods(lambda _: True)
        selectors = ({"matchLabels": {"app": f"a{number}"}} for number in range(count))
        found = [budget(1, selector, name=f"b{number}") for number, selector in enumerate(selectors)]
        budgets.budget_event(Replaced(found, []))
        guarded = pod("p", mem=1, node="n")
        guarded.metadata.labels = {"app": "a7"}
        budgets.pod_applied(msgspec.structs.replace(guarded))
        assert budgets.budget(guarded.metadata.uid) is not None
        asked[count] = calls(lambda: budgets.budget(guarded.metadata.uid))  # noqa: B023 - called at once
    assert asked[3_000] < asked[256]
