"""Gangs, with an API server, a controller and an extender that each know things at another time, and faults.

What must hold, judged by the objects and by who has been told of them, not by the code under test:

* no GPU ever holds more than it has, and as far as the controller knows no place that is kept overlaps another;
* a gate is removed only when all places of the plan are there; a plan is of enough pods for its gang;
* a gang of unknown size is not planned, and what has started goes on, whatever becomes of its PodGroup and labels;
* a gang starts only when the extender knows all places of the plan and has room for them; what has started so is whole
  once things have settled, unless one of its pods or places was lost meanwhile;
* every place that is kept is taken or ends, and ledgers agree with the objects;
* once things have settled, no gang and no single pod waits that would fit.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration, GangConfiguration
from gputile.api.core import Pod
from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL, POD_GROUP_LABEL
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.controlplane.controller.gang_writer import GangWriter
from gputile.controlplane.controller.rounds import RoundPlans, Rounds
from gputile.core.devices.allocation import reservation_of
from gputile.core.devices.gang_membership import gang_of, has_gang_gate
from gputile.core.ledger.ledger import Ledger
from gputile.core.refusal import Refusal
from gputile.core.scheduling.bind import PodBinding, decide_pod
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.reservation_rules import reserved_node
from gputile.kube.objects import Applied, Deleted, Replaced
from tests.conftest import examples
from tests.fakes.corebuilders import request_of
from tests.fakes.coroutines import at_once
from tests.stateful.gangmodel import (
    GPU_UNITS,
    NAMES,
    SECOND,
    Crash,
    Server,
    Told,
    gang_name,
    healthy_gpus,
    held_units,
    labelled_size,
    live_hold,
    new_pod,
    node,
    packs,
    pod_group,
    runs,
    units_of,
    waits,
)

HOLD_SECONDS, PATIENCE_SECONDS, KEEP_SECONDS = 120, 400, 800
CONFIGURATION = Configuration(
    admission=AdmissionConfiguration(gangs=True),
    gangs=GangConfiguration(hold_seconds=HOLD_SECONDS, patience_seconds=PATIENCE_SECONDS, keep_seconds=KEEP_SECONDS),
)
LONGEST_SECONDS = HOLD_SECONDS * 5 // 4  # a place that ends later was written while a clock was wrong
START_NS = 1_000_000_000 * SECOND
FATES = ("done", "done", "done", "unreachable", "answer lost", "never arrived", "late", "cut off", "deposed", "crash")
SOME_FATES: st.SearchStrategy[list[str]] = st.just([]) | st.lists(st.sampled_from(FATES), max_size=6)
# What comes while a round is planned and written, and after how many looks more whether the controller may go on.
MEANWHILE = ("Bindings", "Bindings", "events", "list", "deposed")
NEWS: st.SearchStrategy[list[tuple[int, str]]] = st.just([]) | st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(MEANWHILE)), min_size=1, max_size=3
)
TROUBLE = st.sampled_from(
    [
        "none",
        "gpu",
        "gpu",
        "time",
        "controller",
        "extender",
        "list",
        "others",
        "others",
        "late",
        "lands",
        "clock",
        "group",
        "group",
        "labels",
    ]
)
MIN_MEMBERS = st.sampled_from([None, None, 0, 1, 2, 3, 4, 5])  # of a PodGroup; None where it is deleted
EVERYTHING = 10_000

UNITS = st.sampled_from([4, 4, 3, 2, 1])
SOON_OR_ALL = st.sampled_from([EVERYTHING, EVERYTHING, EVERYTHING, 1, 2, 5])
TIMES = (1, HOLD_SECONDS // 2, HOLD_SECONDS * 4 // 5, HOLD_SECONDS * 4 // 5, HOLD_SECONDS, PATIENCE_SECONDS + 1)
YEAR = 365 * 86_400
CLOCKS = st.sampled_from([0, 0, YEAR, -YEAR, HOLD_SECONDS, -HOLD_SECONDS, 20, -10, 60])


def _some(uids: Sequence[str]) -> st.SearchStrategy[Sequence[str]]:
    return st.integers(0, len(uids)).map(lambda count: uids[:count])


class Meanwhile:
    """What comes to a controller in the course of its rounds, in order.

    What it hears counts as known to it once they are over (``heard``): the plans of a round, and the gates that it
    removes, are those of its beginning.
    """

    def __init__(self, machine: "Gangs", news: Sequence[tuple[int, str]]) -> None:
        self.updates: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self.heard: list[Callable[[], None]] = []
        self.changed: set[str] = set()  # gangs of which it heard: what was planned for them may not be written
        self._machine = machine
        self._told = machine.server.told
        self._news = list(news)

    async def round(self, rounds: Rounds) -> None:
        self._machine.told_of_round = Told(dict(self._told.pods))
        taking = asyncio.create_task(self._take_updates())
        try:
            plans = await rounds.run_round()
            await self.updates.join()
        finally:
            taking.cancel()
        assert plans.gangs is None or not plans.gangs.contradictions, plans.gangs.contradictions

    async def _take_updates(self) -> None:
        while True:
            await (await self.updates.get())()
            self.updates.task_done()

    async def compute(self, plan: Callable[[], RoundPlans]) -> RoundPlans:
        """Plan as the worker thread does; what comes meanwhile the controller hears before it writes."""
        plans = plan()
        for _ in range(10):
            self.active()
        await self.updates.join()
        return plans

    def active(self) -> bool:
        """Return whether the controller may go on, which it asks before each write."""
        while self._news and self._news[0][0] == 0:
            self._comes(self._news.pop(0)[1])
        if self._news:
            self._news[0] = (self._news[0][0] - 1, self._news[0][1])
        return self._machine.active

    def _comes(self, what: str) -> None:
        machine = self._machine
        if what == "deposed":
            machine.active = False
        elif what == "Bindings":
            machine.the_extender_hears(EVERYTHING)
            for uid in sorted(machine.server.pods):
                if waits(machine.server.pods[uid]) and not has_gang_gate(machine.server.pods[uid]):
                    machine.schedule(uid)
        if what != "deposed":
            self.updates.put_nowait(self._list if what == "list" else self._events)

    async def _events(self) -> None:
        machine = self._machine
        for event in machine.server.log[machine.view_at :]:
            await machine.view.pod_event(event)
            machine.view_at += 1
            self._changes(event.object.metadata.uid, event.object)
            self.heard.append(partial(self._told.hear, event))

    async def _list(self) -> None:
        machine = self._machine
        pods = dict(machine.server.pods)
        machine.view_at = len(machine.server.log)
        await machine.view.pod_event(Replaced(list(pods.values())))
        for uid in self._told.pods.keys() | pods.keys():
            if self._told.pods.get(uid) != pods.get(uid):
                self._changes(uid, pods.get(uid))
        self.heard.append(partial(self._told.hear_list, pods))

    def _changes(self, uid: str, now: Pod | None) -> None:
        """Note of which gang a pod was, and is."""
        self.changed.update(gang_name(each) for each in (self._told.pods.get(uid), now) if each is not None)


class Gangs(RuleBasedStateMachine):
    """The watches of controller and extender lag as they like.

    ``begun`` has the pods of each plan that has started, ``lost`` the plans that lost a pod or a place since.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unhealthy: dict[str, Sequence[int]] = {}
        self.server = Server(nodes={name: node(name) for name in NAMES})
        self.server.before_ungate = self.a_gate_goes_when_all_places_are_there
        self.now_ns = START_NS
        self.count = 0
        self.plans = 0
        self.begun: dict[str, set[str]] = {}
        self.lost: set[str] = set()
        self.group_names: list[str] = []
        self.least_size: dict[str, int] = {}  # of a PodGroup, ever: pods beyond it could be left behind
        self.ahead = {"controller": 0, "extender": 0}  # by how many seconds a clock is wrong
        self.under_way: list[tuple[Pod, PodBinding, set[str]]] = []  # Bindings that are not executed yet
        self.restart_extender()
        self.restart_controller()

    def restart_controller(self) -> None:
        self.active = True
        self.told_of_round = Told()
        self.view = ClusterState(CONFIGURATION)
        self.view.set_time(self.controller_ns)
        at_once(self.view.node_event(Replaced(list(self.server.nodes.values()))))
        self.the_controller_lists()
        self.planner = GangPlanner(CONFIGURATION, self.new_plan)
        self.groups_told: dict[str, int] | None = None

    @property
    def controller_ns(self) -> int:
        return self.now_ns + self.ahead["controller"] * SECOND

    @property
    def clocks_are_right(self) -> bool:
        return not any(self.ahead.values())

    def the_controller_lists(self) -> None:
        at_once(self.view.pod_event(Replaced(list(self.server.pods.values()))))
        self.view_at = len(self.server.log)
        self.server.told = Told(dict(self.server.pods))

    def restart_extender(self) -> None:
        """Another replica takes over: it lists, and knows nothing else."""
        self.bindings_land()
        self.extender = Ledger(CONFIGURATION)
        self.engine = PlacementEngine(self.extender)
        self.extender_ns = self.now_ns + self.ahead["extender"] * SECOND
        self.extender.set_time(self.extender_ns)
        self.extender.replace_nodes(list(self.server.nodes.values()))
        self.extender.replace_pods(list(self.server.pods.values()))
        self.extender_at = len(self.server.log)
        self.extender_told = Told(dict(self.server.pods))

    def new_plan(self) -> str:
        self.plans += 1
        return str(self.plans)

    # -- the cluster

    def create(self, name: str, units: int, labels: dict[str, str]) -> None:
        self.server.store(new_pod(name, units, labels, self.now_ns))

    def a_gang_comes(
        self, size: int, units: int, missing: int, more: int, other_units: int = 0, *, by_object: bool = False
    ) -> None:
        """Its last pod may ask for other units than the rest."""
        self.count += 1
        last, name = size - missing + more - 1, f"g{self.count}"
        labels = {POD_GROUP_LABEL: name} if by_object else {GANG_NAME_LABEL: name, GANG_SIZE_LABEL: str(size)}
        if by_object:
            self.group_names.append(name)
            self.a_pod_group_changes(name, size)
        for i in range(last + 1):
            asked = other_units if other_units and i == last else units
            self.create(f"{name}-{i}", asked, labels)

    def a_pod_group_changes(self, name: str, min_member: int | None) -> None:
        """It is deleted, made anew, or given another size; the controller hears of it some time."""
        if min_member is None:
            self.server.groups.pop(name, None)
        else:
            self.server.groups[name] = min_member
        if min_member:
            self.least_size[name] = min(min_member, self.least_size.get(name, min_member))

    def a_running_pod_gets_other_labels(self, uid: str, labels: dict[str, str]) -> None:
        """The labels of one that waits are protected."""
        changed = self.server.pods[uid]
        meta = msgspec.structs.replace(changed.metadata, labels=labels)
        self.server.store(msgspec.structs.replace(changed, metadata=meta))

    def a_member_comes_late(self, data: st.DataObject) -> None:
        """It may ask for no GPU, as a launcher does."""
        like = data.draw(st.sampled_from(self.members()))
        self.count += 1
        units = data.draw(st.sampled_from([units_of(like), units_of(like), 0]))
        self.create(f"{gang_name(like)}-late{self.count}", units, dict(like.metadata.labels))

    def pods_come_alone_and_are_bound_at_once(self, units: int, count: int) -> None:
        """By an extender that has not heard yet what else happened."""
        for _ in range(count):
            self.count += 1
            self.create(f"alone{self.count}", units, {})
            self.schedule(f"alone{self.count}")

    def members(self) -> list[Pod]:
        return [each for each in self.server.pods.values() if gang_name(each)]

    def a_pod_ends(self, uid: str, how: str) -> None:
        ending = self.server.pods[uid]
        if how == "deleted":
            self.server.delete(uid)
        elif runs(ending):
            status = msgspec.structs.replace(ending.status, phase=how)
            self.server.store(msgspec.structs.replace(ending, status=status))

    def a_gpu_fails_or_recovers(self, name: str, unhealthy: list[int]) -> None:
        self.unhealthy[name] = unhealthy
        self.server.nodes[name] = node(name, unhealthy)
        self.extender.apply_node(self.server.nodes[name])
        at_once(self.view.node_event(Applied(self.server.nodes[name])))
        healthy = healthy_gpus(NAMES, self.unhealthy)
        for each in self.members():
            hold = reservation_of(each)
            shares = hold.allocation.gpus if hold is not None and hold.allocation is not None and waits(each) else ()
            if hold is not None and any(share.uuid not in healthy for share in shares):
                self.lost.add(hold.plan)

    def a_clock_is_set(self, who: str, ahead: int) -> None:
        """What has begun may then lose places: they end too soon, or are given anew."""
        self.ahead[who] = ahead
        self.lost.update(self.begun, self.under_way_plans())

    def time_passes(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND
        for each in self.members():
            hold = reservation_of(each)
            if waits(each) and hold is not None and hold.expires_ns <= self.now_ns:
                self.lost.add(hold.plan)

    # -- what happens: few rules, each of which draws, since hypothesis leaves out some of the rules in each run

    @initialize(size=st.integers(2, 4), units=UNITS, alone=st.integers(0, 1), by_object=st.booleans())
    def the_first_gang_comes(self, size: int, units: int, alone: int, by_object: bool) -> None:
        self.a_gang_comes(size, units, 0, 0, by_object=by_object)
        self.pods_come_alone_and_are_bound_at_once(1, alone)

    @rule(data=st.data(), gangs=st.integers(0, 2), alone=st.integers(0, 2), late=st.integers(0, 2))
    def pods_come(self, data: st.DataObject, gangs: int, alone: int, late: int) -> None:
        for _ in range(gangs):
            drawn = st.tuples(st.integers(1, 5), UNITS, st.integers(0, 1), st.integers(0, 1), st.just(0) | UNITS)
            self.a_gang_comes(*data.draw(drawn), by_object=data.draw(st.booleans()))
        if alone:
            self.pods_come_alone_and_are_bound_at_once(data.draw(UNITS), alone)
        for _ in range(late if self.members() else 0):
            self.a_member_comes_late(data)

    @precondition(lambda self: self.server.pods)
    @rule(data=st.data(), how=st.sampled_from(["deleted", "Succeeded", "Failed"]), gang=st.booleans())
    def pods_end(self, data: st.DataObject, how: str, gang: bool) -> None:
        """Some of any kind, or all of a gang, or all that are of none."""
        name = gang_name(self.server.pods[data.draw(st.sampled_from(sorted(self.server.pods)))]) if gang else None
        ending = sorted(uid for uid, each in self.server.pods.items() if name is None or gang_name(each) == name)
        for uid in ending if gang else data.draw(st.lists(st.sampled_from(ending), max_size=4, unique=True)):
            self.a_pod_ends(uid, how)

    @rule(data=st.data(), what=TROUBLE)
    def trouble_comes(self, data: st.DataObject, what: str) -> None:
        if what == "gpu":
            unhealthy = data.draw(st.lists(st.integers(0, 1), max_size=1))
            self.a_gpu_fails_or_recovers(data.draw(st.sampled_from(NAMES)), unhealthy)
        elif what == "time":
            self.time_passes(data.draw(st.sampled_from(TIMES)))
        elif what == "controller":
            self.restart_controller()
        elif what == "extender":
            self.restart_extender()
        elif what == "list":
            self.the_controller_lists()
        elif what == "late":
            self.server.late_writes_are_executed()
        elif what == "lands":
            self.bindings_land()
        elif what == "clock":
            self.a_clock_is_set(data.draw(st.sampled_from(sorted(self.ahead))), data.draw(CLOCKS))
        elif what == "group" and self.group_names:
            self.a_pod_group_changes(data.draw(st.sampled_from(self.group_names)), data.draw(MIN_MEMBERS))
        elif what == "labels" and (running := sorted(each.metadata.uid for each in self.members() if runs(each))):
            other = data.draw(st.sampled_from([{}, *(each.metadata.labels for each in self.members())]))
            self.a_running_pod_gets_other_labels(data.draw(st.sampled_from(running)), other)
        elif what == "others":
            self.pods_come_alone_and_are_bound_at_once(data.draw(UNITS), 2)

    @rule(data=st.data(), who=st.lists(st.sampled_from(["controller", "acts", "extender", "scheduler"]), max_size=6))
    def time_goes_by(self, data: st.DataObject, who: list[str]) -> None:
        for each in who:
            if each == "controller":
                self.the_controller_hears(data.draw(SOON_OR_ALL))
            elif each == "acts":
                self.the_controller_acts(data.draw(SOME_FATES), 1, data.draw(NEWS))
            elif each == "extender":
                self.the_extender_hears(data.draw(SOON_OR_ALL))
            else:
                self.the_scheduler_tries(data)

    @rule(data=st.data(), trouble=st.tuples(TROUBLE, TROUBLE), heard=st.booleans(), settle=st.booleans())
    def gangs_go_their_way(self, data: st.DataObject, trouble: tuple[str, str], heard: bool, settle: bool) -> None:
        """As they would without any trouble: places, gates, Bindings; but trouble may come in between."""
        self.the_controller_hears(EVERYTHING)
        if heard:
            self.the_extender_hears(EVERYTHING)
        self.the_controller_acts(data.draw(SOME_FATES), 1, data.draw(NEWS))
        self.trouble_comes(data, trouble[0])
        self.the_extender_hears(data.draw(SOON_OR_ALL))
        self.the_controller_acts(data.draw(SOME_FATES), 1, data.draw(NEWS))
        self.trouble_comes(data, trouble[1])
        self.the_extender_hears(data.draw(SOON_OR_ALL))
        self.the_scheduler_tries(data)
        if settle:
            self.everything_settles()

    # -- who acts

    def the_controller_acts(self, fates: list[str], rounds: int, news: Sequence[tuple[int, str]] = ()) -> None:
        """It may lose its Lease between two writes, or die: nothing it was about to write is written then.

        With ``news`` others get their turn while a round is planned and written; what the controller hears then it does
        not know yet when it plans.
        """
        left, ended = iter(fates), ""
        meanwhile, woken = Meanwhile(self, news), list[bool]()
        keeper = GangWriter(self.view, self.planner, self.server, meanwhile.active, lambda: woken.append(True))
        gangs, now = (self.planner, keeper), lambda: self.controller_ns
        acting = Rounds(self.view, gangs, None, meanwhile.active, now, meanwhile.compute)

        def fate() -> str:
            nonlocal ended
            drawn = ended or next(left, "done")
            if drawn == "deposed":
                self.active, drawn = False, "done"
            ended = drawn if drawn in ("crash", "cut off") else ""
            return "unreachable" if drawn == "cut off" else drawn

        self.server.fate = fate
        before, surprises = dict(self.server.told.pods), self.server.surprises
        try:
            for _ in range(rounds):
                woken.clear()
                asyncio.run(meanwhile.round(acting))
                self.server.a_round_is_over()
        except Crash:
            self.restart_controller()
            return
        finally:
            deposed, self.server.fate, self.active = not self.active, lambda: "done", True
        wrote_all = not keeper.failures and not deposed and self.server.surprises == surprises
        if not fates and wrote_all:
            # A round that asks for another one has left out gangs that have changed since it was planned.
            self.what_is_kept_is_there_to_be_kept(meanwhile.changed if woken else ())
            self.plans_are_of_enough_pods(before)
        for heard in meanwhile.heard:
            heard()

    def the_controller_hears(self, count: int) -> None:
        """Of pods one by one; of PodGroups when it hears of everything."""
        if count == EVERYTHING and self.groups_told != self.server.groups:
            groups = [pod_group(name, min_member) for name, min_member in self.server.groups.items()]
            self.view.group_event(Replaced(groups))
            self.groups_told = dict(self.server.groups)
        for event in self.server.log[self.view_at : self.view_at + count]:
            at_once(self.view.pod_event(event))
            self.server.told.hear(event)
            self.view_at += 1

    def the_extender_hears(self, count: int) -> None:
        self.extender_ns = self.now_ns + self.ahead["extender"] * SECOND
        self.extender.set_time(self.extender_ns)
        for event in self.server.log[self.extender_at : self.extender_at + count]:
            self.extender_at += 1
            self.extender_told.hear(event)
            match event:
                case Applied(told):
                    self.extender.apply_pod(told)
                case Deleted(told):
                    self.extender.remove_pod(told.metadata.uid)

    def the_scheduler_tries(self, data: st.DataObject) -> None:
        """Pods in any order, as kube-scheduler's queues and backoffs have it; some not at all."""
        waiting = sorted(
            uid for uid, each in self.server.pods.items() if not each.spec.node_name and not has_gang_gate(each)
        )
        if not waiting:
            return
        how = data.draw(st.dictionaries(st.sampled_from(waiting), st.sampled_from(["fails", "slow"]), max_size=2))
        for uid in data.draw(st.permutations(waiting).flatmap(_some)):
            self.schedule(uid, fails=how.get(uid) == "fails", slow=how.get(uid) == "slow")

    def schedule(self, uid: str, *, fails: bool = False, slow: bool = False) -> bool:
        """Offer the pod to the extender, and bind it; where that ``fails``, the API server has refused the Binding.

        A ``slow`` Binding of a gang's pod is under way still, and executed or refused later.
        """
        asking = self.server.pods[uid]
        if not units_of(asking):  # the extender is not asked about it
            return self.server.bind(uid, "", NAMES[0], {}, self.now_ns) is not None
        held = self.extender.booking(uid)
        request, place = request_of(asking), reserved_node(self.extender, asking, self.extender_ns)
        if isinstance(place, Refusal) or (held is not None and not held.reserved):
            return False
        nodes = [place] if place else self.engine.filter(request, NAMES).feasible
        if not nodes:
            return False
        binding = decide_pod(self.engine, asking, request, nodes[0], self.extender_ns, 1.0)
        if not isinstance(binding, PodBinding):
            return False
        booking = binding.booking
        assert booking is not None
        if fails:
            before = self.extender.booking(uid)
            self.extender.assume(booking)
            self.extender.forget(uid)
            assert self.extender.booking(uid) == before, "what was kept for the pod is kept as before"
            return False
        places = self.a_pod_of_a_gang_may_start(asking, binding) if gang_name(asking) else set()
        self.extender.assume(booking)
        self.under_way.append((asking, binding, places))
        if not (slow and gang_name(asking)):
            self.bindings_land(self.under_way.pop())
        return runs(self.server.pods[uid])

    def bindings_land(self, *landing: tuple[Pod, PodBinding, set[str]]) -> None:
        """Some Bindings reach the API server, or all that are under way."""
        if not landing:
            landing, self.under_way = tuple(self.under_way), []
        for asking, binding, places in landing:
            uid = asking.metadata.uid
            annotations = binding.body.metadata.annotations
            bound = self.server.bind(uid, binding.version, binding.node, annotations, self.now_ns)
            if bound is None:
                self.extender.forget(uid)
                continue
            self.extender.confirm(uid)
            self.extender_told.see(bound)
            if binding.plan:
                hold = reservation_of(bound)
                assert hold is not None
                assert hold.plan == binding.plan, f"{bound.key} starts by a plan that it is not of any more"
                self.begun.setdefault(binding.plan, places)
                if not self.clocks_are_right:
                    self.lost.add(binding.plan)

    # -- what must hold whenever somebody acts

    @invariant()
    def no_gpu_holds_more_than_it_has(self) -> None:
        held = held_units(self.server.pods.values(), None)
        assert all(units <= GPU_UNITS for units in held.values()), held

    def what_is_kept_is_there_to_be_kept(self, left_out: Collection[str]) -> None:
        """As far as the controller knows after a round in which all its writes succeeded, but for gangs left out."""
        healthy = healthy_gpus(NAMES, self.unhealthy)
        # While nothing is known of PodGroups, what is kept for their gangs stays as it is.
        told = [
            each
            for each in self.server.told.pods.values()
            if self.groups_told is not None or POD_GROUP_LABEL not in each.metadata.labels
            if not (waits(each) and gang_name(each) in left_out)
        ]
        held = held_units(told, self.controller_ns)
        assert all(units <= GPU_UNITS for units in held.values()), held
        for each in told:
            hold = live_hold(each, self.controller_ns)
            if hold is not None and units_of(each):
                assert hold.expires_ns <= self.controller_ns + LONGEST_SECONDS * SECOND
                assert hold.allocation is not None
                (share,) = hold.allocation.gpus
                assert share.uuid in healthy
                assert share.mib == units_of(each) * 1024, each.key

    def plans_are_of_enough_pods(self, before: dict[str, Pod]) -> None:
        """With those that run, and those that have other places, a new plan makes its gang whole."""
        told = self.server.told
        old = {hold.plan for each in before.values() if (hold := reservation_of(each)) is not None}
        for plan in {hold.plan for each in told.pods.values() if (hold := live_hold(each, self.controller_ns))} - old:
            places = [each for each in told.of_plan(plan) if live_hold(each, self.controller_ns)]
            (gang,) = {gang_name(each) for each in places}
            pods = told.of_gang(gang)
            running = _running(pods, _in_one_second)
            elsewhere = sum(
                (hold := live_hold(each, self.controller_ns)) is not None and hold.plan != plan for each in pods
            )
            asked = {hold.pods for each in places if (hold := reservation_of(each)) is not None}
            assert len(asked) == 1
            size = _size(pods, told.pods.values(), self.groups_told or {}, _in_one_second)
            assert size, f"{gang} is planned, and nobody says its size"
            assert asked.pop() + running + elsewhere >= size, f"{gang} is planned in part"

    def a_gate_goes_when_all_places_are_there(self, asked: Pod) -> None:
        """By what was known when the round began: all its writes are decided before the first is answered."""
        told = self.told_of_round
        hold = live_hold(told.pods[asked.metadata.uid], self.controller_ns)
        assert hold is not None, f"{asked.key} loses its gate without a place"
        places = told.of_plan(hold.plan)
        kept = sum(live_hold(each, self.controller_ns) is not None for each in places)
        begun = any(each.spec.node_name for each in places)  # it may have ended since
        assert begun or kept >= hold.pods, f"{kept} of {hold.pods} places of {asked.key} are there"

    def a_pod_of_a_gang_may_start(self, starting: Pod, binding: PodBinding) -> set[str]:
        """The first of a plan starts only with all others sure of their places, of which nobody else has any part.

        Return the pods that start together.
        """
        told, now_ns, plan = self.extender_told, self.extender_ns, binding.plan
        assert plan, f"{starting.key} starts without a place"
        places = [each for each in told.of_plan(plan) if units_of(each)]
        if any(runs(each) for each in places):
            return {each.metadata.uid for each in places}
        assert plan not in self.under_way_plans(), f"{starting.key} starts before it is certain that its plan begins"
        kept = [each for each in places if live_hold(each, now_ns)]
        hold = reservation_of(told.pods[starting.metadata.uid])
        assert hold is not None
        assert len(kept) >= hold.size, f"{starting.key} starts ahead of its gang"
        gpus = {
            share.uuid for each in kept if (h := reservation_of(each)) and h.allocation for share in h.allocation.gpus
        }
        held = held_units(told.pods.values(), now_ns)
        assert all(held[uuid] <= GPU_UNITS for uuid in gpus), "a place of the plan is not free"
        assert gpus <= set(healthy_gpus(NAMES, self.unhealthy)), "a place of the plan is on a GPU that is unhealthy"
        return {each.metadata.uid for each in kept}

    def under_way_plans(self) -> set[str]:
        return {binding.plan for _, binding, _ in self.under_way}

    # -- what must hold once things have settled

    def everything_settles(self) -> None:
        """All hear, the controller acts, and kube-scheduler tries, until nothing changes any more."""
        self.server.late_writes_are_executed()
        self.bindings_land()
        self.ahead = dict.fromkeys(self.ahead, 0)
        for _ in range(60):
            before = self.server.version
            self.the_controller_hears(EVERYTHING)
            self.the_extender_hears(EVERYTHING)
            self.the_controller_acts([], 1)
            self.the_extender_hears(EVERYTHING)
            for uid in sorted(self.server.pods):
                if waits(self.server.pods[uid]) and not has_gang_gate(self.server.pods[uid]):
                    self.schedule(uid)
            if self.server.version == before:
                break
        else:
            raise AssertionError("it never settles")
        self.what_has_begun_is_whole()
        self.ledgers_agree_with_the_objects()
        self.nobody_waits_who_would_fit()

    def what_has_begun_is_whole(self) -> None:
        for plan, uids in self.begun.items():
            pods = [self.server.pods[uid] for uid in uids if uid in self.server.pods]
            # What has ended well counts, as long as no other pod of the plan has ended in another way.
            all_well = len(pods) == len(uids) and not any(each.status.phase == "Failed" for each in pods)
            begun = [each for each in pods if runs(each) or (all_well and each.finished)]
            if plan in self.lost or not begun:
                continue
            for missing in (each for each in pods if waits(each)):
                gang = [each for each in self.members() if gang_name(each) == gang_name(missing)]
                size = labelled_size(gang, self.server.groups) or self.least_size[gang_name(missing)]
                whole = _running(gang, _in_one_second) >= size
                assert whole, f"plan {plan} runs in part: {missing.key} waits"

    def ledgers_agree_with_the_objects(self) -> None:
        with_gpus = [each for each in self.server.pods.values() if units_of(each)]
        bound = {each.metadata.uid: each.spec.node_name for each in with_gpus if runs(each)}
        kept = {
            each.metadata.uid: hold.node for each in with_gpus if (hold := live_hold(each, self.now_ns)) is not None
        }
        for ledger in (self.extender, self.view.ledger):
            bookings = list(ledger.bookings())
            assert {b.uid: b.node for b in bookings if not b.reserved} == bound
            assert {b.uid: b.node for b in bookings if b.reserved} == kept

    def nobody_waits_who_would_fit(self) -> None:
        """But behind the gang that has waited too long: for it, what becomes free is kept.

        Nor a gang for which GPUs have been kept in vain for so long that none are for a while.
        """
        resting = {gang_name(each) for each in self.members() if self.rests(each)}
        ending = [each for each in self.members() if gang_name(each) in resting]
        held = Counter(held_units(self.server.pods.values(), None))
        held.update(held_units(filter(waits, ending), self.now_ns))
        healthy = healthy_gpus(NAMES, self.unhealthy)
        free = [GPU_UNITS - held.get(uuid, 0) for uuid in healthy]
        gangs: dict[str, list[Pod]] = {}
        for each in self.members():
            if not self.server.is_of_ended_run(each):
                gangs.setdefault(gang_name(each), []).append(each)
        sizes = {
            name: _size(pods, self.server.pods.values(), self.server.groups, self.server.were_together)
            for name, pods in gangs.items()
        }
        least = {
            name: units
            for name, pods in gangs.items()
            if sizes[name]
            and (labelled_size(pods, self.server.groups) or _goes_on(pods))
            and (units := _least(pods, sizes[name] - self.running(pods)))
        }
        # A gang that can never fit holds nobody up.
        overdue = [
            name
            for name in least.keys() - resting
            if self.is_overdue(gangs[name], sizes[name]) and packs(least[name], [GPU_UNITS] * len(healthy))
        ]
        if not overdue:
            others = [each for each in self.server.pods.values() if each not in ending]
            kept = [each.key for each in others if live_hold(each, self.now_ns)]
            assert not kept, f"{kept} have places and do not start"
            for each in self.server.pods.values():
                if waits(each) and not gang_name(each):
                    assert not packs([units_of(each)], free), f"{each.key} waits, and would fit"
        for name in overdue if len(overdue) == 1 else () if overdue else least.keys() - resting:
            assert not packs(least[name], free), f"{name} waits, and would fit"

    def rests(self, member: Pod) -> bool:
        gang = gang_of(member)
        return gang is not None and waits(member) and self.planner.patience.is_paused(gang)

    def is_overdue(self, pods: list[Pod], size: int) -> bool:
        """Return whether the gang may hold others up."""
        newest = max(each.metadata.creation_timestamp or "" for each in pods if waits(each))
        long_ago = new_pod("then", 1, {}, self.now_ns - PATIENCE_SECONDS * SECOND).metadata.creation_timestamp or ""
        return newest < long_ago and self.running(pods) < size

    def running(self, pods: Sequence[Pod]) -> int:
        """Return how many pods of a gang have started, by what the server knows."""
        return _running(pods, self.server.were_together)

    def teardown(self) -> None:
        self.everything_settles()
        self.time_passes(LONGEST_SECONDS)
        self.extender.set_time(self.now_ns)
        self.view.set_time(self.now_ns)
        for ledger in (self.extender, self.view.ledger):
            assert not any(booking.reserved for booking in ledger.bookings()), "a place is kept for ever"


def _in_one_second(waiting: Pod, bound: Pod) -> bool:
    """Return whether ``waiting`` may have existed when ``bound`` was bound, by times that have seconds only."""
    return (waiting.metadata.creation_timestamp or "") <= bound.bound_at


def _started(pods: Sequence[Pod], together: Callable[[Pod, Pod], bool]) -> list[Pod]:
    """Return the pods of a gang that have started.

    Those that have succeeded count while others run, and for those that existed when they were bound.
    """
    running = [each for each in pods if runs(each)]
    waiting = [each for each in pods if waits(each)]
    succeeded = [each for each in pods if each.status.phase == "Succeeded"]
    return running + [done for done in succeeded if running or any(together(each, done) for each in waiting)]


def _running(pods: Sequence[Pod], together: Callable[[Pod, Pod], bool]) -> int:
    return len(_started(pods, together))


def _size(
    pods: Sequence[Pod], everybody: Iterable[Pod], min_members: Mapping[str, int], together: Callable[[Pod, Pod], bool]
) -> int:
    """Return how many pods of a gang start together: where nobody says it any more, as many as were planned."""
    if size := labelled_size(pods, min_members):
        return size
    started = _started(pods, together)
    begun = [*started, *(each for each in everybody if runs(each))]
    # A pod that asks for no GPU starts alone, and begins a plan only if the plan has no GPUs at all.
    plans = {
        hold.plan for each in begun if (hold := reservation_of(each)) is not None and (hold.allocation or not hold.size)
    }
    ours = (reservation_of(each) for each in [*started, *(each for each in pods if waits(each))])
    return max((hold.pods for hold in ours if hold is not None and hold.plan in plans), default=0)


def _goes_on(pods: Sequence[Pod]) -> bool:
    """Return whether a plan of the gang has pods that have not finished: one that has ended tells no size any more."""
    return any(reservation_of(each) is not None for each in pods if not each.finished)


def _least(pods: Sequence[Pod], missing: int) -> list[int]:
    """Return the units of the pods that a gang needs to get on, the most modest of them; empty where some miss."""
    waiting = sorted(units_of(each) for each in pods if waits(each))
    needed = max(1, missing)
    return sorted(waiting[:needed], reverse=True) if len(waiting) >= needed else []


# A fault between plans that was made on purpose is found by most runs of 1,000: `make soak` has twice as many.
Gangs.TestCase.settings = settings(max_examples=examples(400), stateful_step_count=12, deadline=None)
TestGangs = Gangs.TestCase


# -- ways that chance takes too seldom


def bound_of(machine: Gangs) -> set[str]:
    return {uid for uid, each in machine.server.pods.items() if each.spec.node_name}


# -- ways that an enemy would take


class Replica:
    """What one of two controllers has that both believe that they lead."""

    def __init__(self, machine: Gangs) -> None:
        machine.restart_controller()
        self.state = {name: getattr(machine, name) for name in ("view", "view_at", "planner", "groups_told")}
        self.told = machine.server.told

    def act(self, machine: Gangs, fates: list[str], heard: int = 0) -> None:
        """Let it be the one that hears and acts."""
        for name, value in self.state.items():
            setattr(machine, name, value)
        machine.server.told = self.told
        machine.the_controller_hears(heard)
        machine.the_controller_acts(fates, 1)
        self.state = {name: getattr(machine, name) for name in self.state}
        self.told = machine.server.told


@pytest.mark.parametrize("written", range(5))
@pytest.mark.parametrize("fate", ["cut off", "late", "answer lost"])
def test_two_controllers_that_both_believe_that_they_lead(written: int, fate: str) -> None:
    """One stood still between two writes, and goes on with a plan that the other has replaced."""
    machine = Gangs()
    machine.a_gang_comes(3, 4, 0, 0)
    one, other = Replica(machine), Replica(machine)
    one.act(machine, ["done"] * written + [fate] * 3)
    other.act(machine, [])
    machine.the_extender_hears(EVERYTHING)
    other.act(machine, [])
    machine.server.late_writes_are_executed()
    one.act(machine, [])
    for uid in sorted(machine.server.pods):
        if not has_gang_gate(machine.server.pods[uid]):
            machine.schedule(uid)
    other.act(machine, [], EVERYTHING)
    one.act(machine, [])
    machine.no_gpu_holds_more_than_it_has()
    machine.everything_settles()
    assert len(bound_of(machine)) == 3
    machine.teardown()


@pytest.mark.parametrize("written", range(4))
@pytest.mark.parametrize("renamed", range(3))
def test_a_pod_that_is_made_anew_under_its_name_between_two_writes_of_a_plan(written: int, renamed: int) -> None:
    """Its reservation was for another pod: nothing of it counts, and the gang is planned with the new one."""
    machine = Gangs()
    machine.a_gang_comes(3, 4, 0, 0)
    machine.the_controller_hears(EVERYTHING)
    machine.the_controller_acts(["done"] * written + ["cut off"], 1)
    old = machine.server.pods[f"g1-{renamed}"]
    machine.server.delete(f"g1-{renamed}")
    anew = new_pod(f"g1-{renamed}", 4, dict(old.metadata.labels), machine.now_ns)
    meta = msgspec.structs.replace(anew.metadata, uid=f"g1-{renamed}-anew")
    machine.server.store(msgspec.structs.replace(anew, metadata=meta))
    machine.the_controller_acts([], 2)
    machine.the_extender_hears(EVERYTHING)
    for uid in sorted(machine.server.pods):
        if not has_gang_gate(machine.server.pods[uid]):
            machine.schedule(uid)
    machine.everything_settles()
    assert len(bound_of(machine)) == 3
    machine.teardown()


@pytest.mark.parametrize("bound", range(4))
def test_a_node_leaves_while_the_pods_of_a_plan_are_bound(bound: int) -> None:
    """What waits has no place any more, and gets one when the node is back."""
    machine = Gangs()
    machine.a_gang_comes(4, 4, 0, 0)
    machine.the_controller_hears(EVERYTHING)
    machine.the_controller_acts([], 2)
    machine.the_controller_hears(EVERYTHING)
    machine.the_extender_hears(EVERYTHING)
    for uid in [f"g1-{i}" for i in range(bound)]:
        assert machine.schedule(uid)
    leaves = machine.server.nodes["b"]
    machine.extender.remove_node("b")
    at_once(machine.view.node_event(Deleted(leaves)))
    machine.the_controller_acts([], 1)
    machine.the_extender_hears(EVERYTHING)
    before = bound_of(machine)
    for uid in sorted(machine.server.pods):
        if waits(machine.server.pods[uid]):
            machine.schedule(uid)
    assert all(machine.server.pods[uid].spec.node_name == "a" for uid in bound_of(machine) - before)
    assert bool(bound_of(machine)) is bool(bound), "a plan that has not begun does not begin in part"
    machine.extender.apply_node(leaves)
    at_once(machine.view.node_event(Applied(leaves)))
    machine.everything_settles()
    assert len(bound_of(machine)) == 4
