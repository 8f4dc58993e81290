"""GPUs are reserved in vain for half of the time at most, whatever gangs there are, and whoever leads."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import GangConfiguration
from gputile.api.core import Node
from gputile.api.well_known import GPU_MEMORY
from gputile.controlplane.controller.gangs.gang_planner import GangPlanner
from gputile.controlplane.controller.gangs.starvation import AccountError, StarvationTimeout
from gputile.core.devices.gang_membership import GangName
from gputile.core.placement.steps import at_once
from gputile.kube.objects import Applied
from tests.fakes.corebuilders import gpu_node
from tests.unit.controlplane.controller.gangs.test_gang_planner import NOW, SECOND, Bench, member, said

pytestmark = pytest.mark.requirement("M13", "B5")

HOLD, PATIENCE, KEEP = 120, 600, 3600
SETTINGS = GangConfiguration(hold_seconds=HOLD, patience_seconds=PATIENCE, keep_seconds=KEEP)
OLD = "2030-03-17T10:00:00Z"
GANGS = [GangName("default", f"g{i}", False) for i in range(3)]


@dataclass
class Reserved:
    """For how many of the seconds that passed GPUs were reserved in vain: ``spans`` are pairs of both."""

    spans: list[tuple[int, int]] = field(default_factory=list)

    def pass_time(self, seconds: int, *, in_vain: bool) -> None:
        self.spans.append((seconds, seconds if in_vain else 0))

    def most_beyond_half(self) -> float:
        """Return by how many seconds it was more than half in any stretch of time, at most."""
        most = beyond = 0.0
        for seconds, in_vain in self.spans:
            beyond = max(0.0, beyond + in_vain - seconds / 2)
            most = max(most, beyond)
        return most


@given(data=st.data())
def test_half_of_the_time_whatever_gangs_come_and_leaders_change(data: st.DataObject) -> None:
    timeout, now_ns, reserved, kept = StarvationTimeout(SETTINGS), NOW * SECOND, Reserved(), set[GangName]()
    for _ in range(data.draw(st.integers(1, 60))):
        seconds = data.draw(st.sampled_from([1, 5, 60, 599, 3000, 3599]))
        for part in [min(60, seconds)] * (seconds // 60 or 1):
            reserved.pass_time(part, in_vain=bool(kept))
            now_ns += part * SECOND
            timeout.begin(set(GANGS), now_ns)
            wanted = (
                data.draw(st.sampled_from(["starve", "starve", "repeat", "nobody"])) if part == seconds else "starve"
            )
            gang, kept = data.draw(st.sampled_from(GANGS)), set()
            if wanted == "starve" and timeout.has_passed(gang, NOW - PATIENCE - 1, now_ns):
                timeout.starve(gang, certain=data.draw(st.booleans()))
                kept = {gang}
            elif wanted == "repeat" and not timeout.resting:
                timeout.repeat(gang)
                kept = {gang}
            timeout.end(lambda _: False, finished=True)
        if data.draw(st.booleans()):
            account, timeout = timeout.account(), StarvationTimeout(SETTINGS)
            timeout.resume(account)
    assert reserved.most_beyond_half() <= (KEEP + HOLD) / 2


def nodes(count: int, gpus: int) -> list[Node]:
    amounts = {"cpu": "99", "pods": "99", GPU_MEMORY: "999"}
    return [gpu_node(f"n{i}", mode="cgpu", sizes=[4096] * gpus, allocatable=amounts) for i in range(count)]


def kept(bench: Bench) -> int:
    return sum(booking.reserved for booking in bench.view.ledger.bookings())


def played(bench: Bench, hours: float, leaders: Callable[[int], bool], step: int = 40) -> Reserved:
    """Let time pass, with another planner whenever ``leaders`` says so of the seconds that have passed."""
    reserved = Reserved()
    for after in range(0, int(hours * 3600), step):
        if leaders(after):
            account, bench.planner = bench.planner.account(), GangPlanner(bench.view, bench.new_plan)
            bench.planner.resume(account)
        bench.round(after)
        reserved.pass_time(step, in_vain=kept(bench) > 0)
    return reserved


@pytest.mark.parametrize("seconds", [120, 3000, 10**9])
def test_a_gang_that_would_fit_some_day_whoever_leads(seconds: int) -> None:
    """Half of its GPUs are in use, and never become free."""
    bench = Bench(*nodes(2, 4))
    at_once(bench.view.pod_event(Applied(member("x", 0, 1, node="n0", labels={}))))
    bench.gang("large", 8, born=OLD)
    reserved = played(bench, 10, lambda after: after % seconds < 40)
    assert reserved.most_beyond_half() <= (KEEP + HOLD) / 2 + 40
    assert sum(in_vain for _, in_vain in reserved.spans) > 3600, "it has its chance all the same"


@pytest.mark.parametrize("seconds", [80, 3000, 10**9])
@pytest.mark.parametrize("gangs", [1, 2])
def test_gangs_whose_pods_kube_scheduler_never_binds_whoever_leads(gangs: int, seconds: int) -> None:
    """They fit, and ask for a volume that does not exist: the plan knows nothing of that."""
    bench = Bench(*nodes(2, 4))
    for i in range(gangs):
        bench.gang(f"unbound{i}", 4, born=OLD)
    reserved = played(bench, 10, lambda after: after % seconds < 40)
    assert reserved.most_beyond_half() <= (KEEP + HOLD) / 2 + HOLD
    assert sum(in_vain for _, in_vain in reserved.spans) > 3600, "it is tried again"


def test_a_gang_whose_pods_kube_scheduler_never_binds_is_told_why_it_waits() -> None:
    bench, told = Bench(*nodes(1, 4)), []
    bench.gang("unbound", 4)
    for after in range(0, KEEP + 2 * HOLD, 20):
        result = bench.round(after)
        told += [event.message for event in result.events if event.reason == "GangWaiting"]
    assert kept(bench) == 0
    assert len(told) == 1
    assert "kube-scheduler bound none of them" in told[0]
    bench.gang("other", 4)
    assert said(bench.round(KEEP + 2 * HOLD)) == {"other": "GangPlanned"}


def test_what_was_reserved_for_a_gang_that_starts_was_not_in_vain() -> None:
    timeout = StarvationTimeout(SETTINGS)
    timeout.begin(set(GANGS), 0)
    timeout.starve(GANGS[0], certain=True)
    timeout.end(lambda _: False, finished=True)
    timeout.begin(set(GANGS), 3000 * SECOND)
    timeout.end(lambda gang: gang == GANGS[0], finished=True)
    assert not timeout.account()


@pytest.mark.parametrize(
    "text",
    ["nonsense", '{"version":2}', '{"version":1}', '{"version":1,"at_ns":-1}', '{"version":1,"at_ns":1,"gave_way":1}'],
)
def test_an_account_that_cannot_be_read_changes_nothing(text: str) -> None:
    timeout = StarvationTimeout(SETTINGS)
    with pytest.raises(AccountError):
        timeout.resume(text)
    assert not timeout.account()


def test_an_account_with_absurd_numbers_is_bounded() -> None:
    timeout = StarvationTimeout(SETTINGS)
    timeout.resume('{"version":1,"at_ns":1,"debt_ns":99999999999999999999,"resting":true}')
    timeout.begin(set(), NOW * SECOND)
    timeout.begin(set(), (NOW + KEEP + HOLD) * SECOND)
    assert not timeout.resting


@pytest.mark.parametrize("ahead", [-365 * 86_400, -3000, 3000, 365 * 86_400])
@pytest.mark.parametrize("state", ["reserving", "resting"])
def test_a_leader_whose_clock_differs_from_that_of_the_one_before_rests_for_no_longer(ahead: int, state: str) -> None:
    timeout = StarvationTimeout(SETTINGS)
    at_ns, debt_ns = (NOW + ahead) * SECOND, 1800 * SECOND
    timeout.resume(f'{{"version":1,"at_ns":{at_ns},"debt_ns":{debt_ns},"{state}":true}}')
    timeout.begin(set(GANGS), NOW * SECOND)
    timeout.end(lambda _: False, finished=True)
    for after in range(0, KEEP + 2 * HOLD, 60):
        timeout.begin(set(GANGS), (NOW + after) * SECOND)
        timeout.end(lambda _: False, finished=True)
    assert not timeout.resting
    assert not timeout.account()
