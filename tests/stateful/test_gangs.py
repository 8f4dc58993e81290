"""Gangs, with an API server, a controller and an extender that each know things at another time, and faults.

What must hold:

* no card ever holds more than it has, at any moment;
* a gang starts whole: once things have settled, it runs whole or not at all, unless it lost something since it began;
* once things have settled, no gang waits that would fit.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gputile.api.config.v1alpha1 import Admission, Configuration
from gputile.api.core import Node, ObjectReference, Pod, SchedulingGate
from gputile.api.wellknown import (
    ALLOCATION_ANNOTATION,
    GANG_GATE,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_MEMORY,
    HOLD_ANNOTATION,
)
from gputile.controller.gangkeeper import GangKeeper
from gputile.controller.rounds import Planner
from gputile.controller.view import View
from gputile.device.allocation import decode_allocation
from gputile.device.gang import gang_of, gated
from gputile.intree.predicates import Predicates
from gputile.kube.errors import AnswerLost, ConnectionFailed, NotFound
from gputile.kube.reflector import Applied, Deleted, Replaced
from gputile.ledger.events import Assumed, NodeApplied, PodApplied, PodDeleted, TimePassed
from gputile.ledger.ledger import Ledger
from gputile.scheduling.claim import claim, place_of, place_problem
from gputile.scheduling.decision import Decision
from gputile.scheduling.gangplan import candidate, plan_gang
from gputile.scheduling.placer import Placer
from tests.corebuilders import gpu_node, pod, request_of

CONFIGURATION = Configuration(admission=Admission(gangs=True))
NAMES = ("a", "b")
CARD_UNITS = 4
SECOND = 10**9
HOLD_SECONDS = CONFIGURATION.gangs.hold_seconds
FATES = ("done", "done", "done", "unreachable", "answer lost", "never arrived", "crash")


UNITS = st.sampled_from([4, 4, 3, 2, 1])
WHO = ("controller", "acts", "extender", "scheduler", "settle")
SOON_OR_ALL = st.sampled_from([10_000, 10_000, 10_000, 1, 5])


def _some(uids: Sequence[str]) -> st.SearchStrategy[Sequence[str]]:
    return st.integers(0, len(uids)).map(lambda count: uids[:count])


class Crash(Exception):
    """The controller dies."""


def node(name: str, sick: Sequence[int] = ()) -> Node:
    sizes = [CARD_UNITS * 1024] * 2
    return gpu_node(
        name, mode="cgpu", sizes=sizes, sick=sick, allocatable={"cpu": "99", "pods": "99", GPU_MEMORY: "99"}
    )


@dataclass
class Server:
    """The API server: its objects, and what it tells watchers."""

    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    log: list[Applied[Pod] | Deleted[Pod]] = field(default_factory=list)
    version: int = 0
    fate: Callable[[], str] = lambda: "done"

    def store(self, changed: Pod) -> Pod:
        self.version += 1
        meta = msgspec.structs.replace(changed.metadata, resource_version=str(self.version))
        stored = msgspec.structs.replace(changed, metadata=meta)
        self.pods[stored.metadata.uid] = stored
        self.log.append(Applied(stored))
        return stored

    def delete(self, uid: str) -> None:
        self.version += 1
        self.log.append(Deleted(self.pods.pop(uid)))

    # the controller's writes

    async def hold(self, asked: Pod, text: str | None) -> Pod:
        def change(current: Pod) -> Pod:
            kept = {key: value for key, value in current.metadata.annotations.items() if key != HOLD_ANNOTATION}
            kept |= {HOLD_ANNOTATION: text} if text is not None else {}
            return msgspec.structs.replace(
                current, metadata=msgspec.structs.replace(current.metadata, annotations=kept)
            )

        return self._write(asked, change)

    async def ungate(self, asked: Pod) -> Pod:
        def change(current: Pod) -> Pod:
            return msgspec.structs.replace(current, spec=msgspec.structs.replace(current.spec, scheduling_gates=()))

        return self._write(asked, change)

    def _write(self, asked: Pod, change: Callable[[Pod], Pod]) -> Pod:
        fate = self.fate()
        if fate == "crash":
            raise Crash
        if fate == "unreachable":
            raise ConnectionFailed("no connection")
        if fate == "never arrived":
            raise AnswerLost("no answer")
        current = self.pods.get(asked.metadata.uid)
        if current is None:
            raise NotFound(404, "NotFound", "no such pod")
        stored = self.store(change(current))
        if fate == "answer lost":
            raise AnswerLost("no answer")
        return stored

    async def pod(self, namespace: str, name: str) -> Pod | None:
        return next((each for each in self.pods.values() if each.metadata.name == name), None)

    def record(self, about: ObjectReference, reason: str, message: str, *, warning: bool) -> None:
        assert message


class Gangs(RuleBasedStateMachine):
    """The watches of controller and extender lag as they like; ``disturbed`` gangs lost something after they began."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server(nodes={name: node(name) for name in NAMES})
        self.now_ns = 1_000_000 * SECOND
        self.count = 0
        self.plans = 0
        self.disturbed: set[str] = set()
        self.extender = Ledger(CONFIGURATION)
        self.placer = Placer(self.extender)
        self.extender_at = 0
        for each in self.server.nodes.values():
            self.extender.apply(NodeApplied(each))
        self.restart_controller()

    def restart_controller(self) -> None:
        self.view = View(CONFIGURATION)
        self.view.tick(self.now_ns)
        self.view.take_nodes(Replaced(list(self.server.nodes.values())))
        self.view.take_pods(Replaced(list(self.server.pods.values())))
        self.view_at = len(self.server.log)
        planner = Planner(self.view, self.new_plan)
        self.keeper = GangKeeper(self.view, planner, self.server, lambda: True, lambda: self.now_ns)

    def new_plan(self) -> str:
        self.plans += 1
        return str(self.plans)

    # -- the cluster

    def create(self, name: str, units: int, labels: dict[str, str]) -> None:
        asking = pod(name, mem=units)
        meta = msgspec.structs.replace(asking.metadata, labels=labels, creation_timestamp="1970-01-12T13:46:40Z")
        gates = (SchedulingGate(name=GANG_GATE),) if labels else ()
        spec = msgspec.structs.replace(asking.spec, scheduling_gates=gates)
        self.server.store(msgspec.structs.replace(asking, metadata=meta, spec=spec))

    def a_gang_comes(self, size: int, units: int, missing: int, more: int) -> None:
        self.count += 1
        for i in range(size - missing + more):
            self.create(f"g{self.count}-{i}", units, {GANG_NAME_LABEL: f"g{self.count}", GANG_SIZE_LABEL: str(size)})

    def a_member_comes_late(self, data: st.DataObject) -> None:
        like = data.draw(st.sampled_from(self.members()))
        self.count += 1
        units = int(like.spec.containers[0].resources.limits[GPU_MEMORY])
        gang = like.metadata.labels[GANG_NAME_LABEL]
        self.create(f"{gang}-late{self.count}", units, dict(like.metadata.labels))

    def pods_come_alone_and_are_bound_at_once(self, units: int, count: int) -> None:
        """By an extender that has not heard yet what else happened."""
        for _ in range(count):
            self.count += 1
            self.create(f"alone{self.count}", units, {})
            self.schedule(f"alone{self.count}")

    def members(self) -> list[Pod]:
        return [each for each in self.server.pods.values() if gang_of(each)]

    def a_pod_ends(self, data: st.DataObject, how: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.server.pods)))
        ending = self.server.pods[uid]
        self.disturb(ending)
        if how == "deleted":
            self.server.delete(uid)
        elif ending.spec.node_name:
            status = msgspec.structs.replace(ending.status, phase=how)
            self.server.store(msgspec.structs.replace(ending, status=status))

    def disturb(self, one: Pod) -> None:
        gang = gang_of(one)
        if gang is not None:
            self.disturbed.add(gang.name)

    def a_card_sickens_or_heals(self, name: str, sick: list[int]) -> None:
        self.server.nodes[name] = node(name, sick)
        self.extender.apply(NodeApplied(self.server.nodes[name]))
        self.view.take_nodes(Applied(self.server.nodes[name]))
        if sick:
            self.disturb_those_begun()

    def time_passes(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND
        self.extender.apply(TimePassed(self.now_ns))
        if seconds > 1:
            self.disturb_those_begun()

    def disturb_those_begun(self) -> None:
        for each in self.members():
            if each.spec.node_name:
                self.disturb(each)

    # -- what happens: few rules, each of which draws, since hypothesis leaves out some of the rules in each run

    @rule(data=st.data(), gangs=st.integers(0, 2), alone=st.integers(0, 4), late=st.booleans())
    def pods_come(self, data: st.DataObject, gangs: int, alone: int, late: bool) -> None:
        for _ in range(gangs):
            self.a_gang_comes(*data.draw(st.tuples(st.integers(1, 5), UNITS, st.integers(0, 1), st.integers(0, 1))))
        if alone:
            self.pods_come_alone_and_are_bound_at_once(data.draw(UNITS), alone)
        if late and self.members():
            self.a_member_comes_late(data)

    @precondition(lambda self: self.server.pods)
    @rule(data=st.data(), count=st.integers(1, 6))
    def pods_end(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.server.pods))):
            self.a_pod_ends(data, data.draw(st.sampled_from(["deleted", "Succeeded", "Failed"])))

    @rule(data=st.data())
    def trouble_comes(self, data: st.DataObject) -> None:
        if data.draw(st.booleans()):
            sick = data.draw(st.lists(st.integers(0, 1), max_size=1))
            self.a_card_sickens_or_heals(data.draw(st.sampled_from(NAMES)), sick)
        else:
            self.time_passes(data.draw(st.sampled_from([1, HOLD_SECONDS // 2, HOLD_SECONDS])))

    @rule(data=st.data(), who=st.lists(st.sampled_from(WHO), min_size=4, max_size=12))
    def time_goes_by(self, data: st.DataObject, who: list[str]) -> None:
        for each in who:
            if each == "controller":
                self.the_controller_hears(data.draw(SOON_OR_ALL))
            elif each == "acts":
                fates = st.just([]) | st.just([]) | st.lists(st.sampled_from(FATES), max_size=6)
                self.the_controller_acts(data.draw(fates), 1)
            elif each == "extender":
                self.the_extender_hears(data.draw(SOON_OR_ALL))
            elif each == "scheduler":
                self.the_scheduler_tries(data)
            elif data.draw(st.integers(0, 3)) == 0:
                self.everything_settles()

    # -- who acts

    def the_controller_acts(self, fates: list[str], rounds: int) -> None:
        left = iter(fates)
        self.server.fate = lambda: next(left, "done")
        try:
            for _ in range(rounds):
                asyncio.run(self.keeper.run_round())
        except Crash:
            self.restart_controller()
        finally:
            self.server.fate = lambda: "done"

    def the_controller_hears(self, count: int) -> None:
        for event in self.server.log[self.view_at : self.view_at + count]:
            self.view.take_pods(event)
            self.view_at += 1

    def the_extender_hears(self, count: int) -> None:
        for event in self.server.log[self.extender_at : self.extender_at + count]:
            self.extender_at += 1
            match event:
                case Applied(told):
                    self.extender.apply(PodApplied(told))
                case Deleted(told):
                    self.extender.apply(PodDeleted(told.metadata.uid))

    def the_scheduler_tries(self, data: st.DataObject) -> None:
        """Pods in any order, as kube-scheduler's queues and backoffs have it; some not at all."""
        waiting = sorted(uid for uid, each in self.server.pods.items() if not each.spec.node_name and not gated(each))
        for uid in data.draw(st.permutations(waiting).flatmap(_some)):
            self.schedule(uid)

    def schedule(self, uid: str) -> bool:
        asking = self.server.pods[uid]
        held = self.extender.booking(uid)
        if place_problem(self.extender, asking, self.now_ns) or (held is not None and not held.tentative):
            return False
        request, place = request_of(asking), place_of(asking, self.extender, self.now_ns)
        nodes = [place] if place else self.placer.filter(request, NAMES).feasible
        if not nodes:
            return False
        decision = claim(self.placer, asking, request, nodes[0], self.now_ns)
        if not isinstance(decision, Decision):
            return False
        booking = decision.booking(asking, "default", 1.0)
        assert booking is not None
        self.extender.apply(Assumed(booking))
        meta = msgspec.structs.replace(
            asking.metadata, annotations=asking.metadata.annotations | decision.annotations()
        )
        spec = msgspec.structs.replace(asking.spec, node_name=decision.node)
        self.server.store(msgspec.structs.replace(asking, metadata=meta, spec=spec))
        return True

    # -- what must hold

    @invariant()
    def no_card_holds_more_than_it_has(self) -> None:
        held: dict[str, int] = {}
        for each in self.server.pods.values():
            if each.spec.node_name and not each.finished:
                for share in decode_allocation(each.metadata.annotations[ALLOCATION_ANNOTATION]).cards:
                    held[share.uuid] = held.get(share.uuid, 0) + share.mib
        assert all(mib <= CARD_UNITS * 1024 for mib in held.values()), held

    def everything_settles(self) -> None:
        """All hear, the controller acts, and kube-scheduler tries, until nothing changes any more."""
        for _ in range(60):
            before = self.server.version
            self.the_controller_hears(10_000)
            self.the_extender_hears(10_000)
            asyncio.run(self.keeper.run_round())
            self.the_extender_hears(10_000)
            for uid in sorted(self.server.pods):
                if not self.server.pods[uid].spec.node_name and not gated(self.server.pods[uid]):
                    self.schedule(uid)
            if self.server.version == before:
                break
        else:
            raise AssertionError("it never settles")
        gangs: dict[str, list[Pod]] = {}
        for each in self.members():
            gangs.setdefault(each.metadata.labels[GANG_NAME_LABEL], []).append(each)
        for gang, pods in gangs.items():
            self.is_whole_or_waits_rightly(gang, pods)

    def is_whole_or_waits_rightly(self, gang: str, pods: list[Pod]) -> None:
        size = int(pods[0].metadata.labels[GANG_SIZE_LABEL])
        bound = [each for each in pods if each.spec.node_name]
        running = [each for each in bound if not each.finished]
        if gang not in self.disturbed:
            assert not bound or len(bound) >= size, f"{gang} runs in part: {len(bound)} of {size}"
        waiting = [each for each in pods if not each.spec.node_name]
        counted = len(running) + (sum(each.status.phase == "Succeeded" for each in pods) if running else 0)
        needed = max(1, size - counted)
        if len(waiting) < needed:
            return
        ledger = Ledger(CONFIGURATION)
        for each_node in self.server.nodes.values():
            ledger.apply(NodeApplied(each_node))
        for each in self.server.pods.values():
            if each.spec.node_name:
                ledger.apply(PodApplied(each))
        found = plan_gang(
            [candidate(each, ledger) for each in waiting],
            needed,
            Placer(ledger),
            Predicates(list(self.server.nodes.values())),
            self.now_ns,
        )
        overdue = self.now_ns - 1_000_000 * SECOND > CONFIGURATION.gangs.patience_seconds * SECOND
        assert overdue or not found.fits, f"{gang} waits, and would fit"

    def teardown(self) -> None:
        self.everything_settles()


Gangs.TestCase.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
TestGangs = Gangs.TestCase


# -- ways that chance takes too seldom


def bound_of(machine: Gangs) -> set[str]:
    return {uid for uid, each in machine.server.pods.items() if each.spec.node_name}


def test_a_gang_that_did_not_fit_starts_when_there_is_room() -> None:
    machine = Gangs()
    machine.pods_come_alone_and_are_bound_at_once(4, 4)
    machine.a_gang_comes(2, 4, 0, 0)
    machine.everything_settles()
    assert len(bound_of(machine)) == 4
    machine.server.delete("alone1")
    machine.everything_settles()
    assert len(bound_of(machine)) == 3, "one place is not enough for two"
    machine.server.delete("alone2")
    machine.everything_settles()
    assert {"g5-0", "g5-1"} < bound_of(machine)


def test_cards_that_the_extender_gave_away_before_it_heard_of_the_plan() -> None:
    """The gates are gone already; nobody of the gang starts, and the gang starts later, elsewhere, whole."""
    machine = Gangs()
    machine.a_gang_comes(3, 4, 0, 0)
    machine.the_controller_hears(10_000)
    machine.the_extender_hears(10_000)
    machine.the_controller_acts([], 1)
    machine.pods_come_alone_and_are_bound_at_once(4, 2)
    machine.the_controller_acts([], 2)
    assert not any(gated(each) for each in machine.members())
    machine.the_extender_hears(10_000)
    assert not any(machine.schedule(f"g1-{i}") for i in range(3))
    machine.no_card_holds_more_than_it_has()
    machine.server.delete("alone2")
    machine.everything_settles()
    assert bound_of(machine) == {"alone3", "g1-0", "g1-1", "g1-2"}


def test_a_controller_that_dies_between_the_places_of_a_plan() -> None:
    for written in range(4):
        machine = Gangs()
        machine.a_gang_comes(3, 4, 0, 0)
        machine.the_controller_hears(10_000)
        machine.the_controller_acts(["done"] * written + ["crash"], 2)
        machine.pods_come_alone_and_are_bound_at_once(4, 1)
        machine.everything_settles()
        assert len(bound_of(machine)) == 4
        machine.no_card_holds_more_than_it_has()


def test_a_controller_that_dies_between_the_gates_of_a_plan() -> None:
    for written in range(3, 7):
        machine = Gangs()
        machine.a_gang_comes(3, 4, 0, 0)
        machine.the_controller_hears(10_000)
        machine.the_controller_acts(["done"] * written + ["crash"], 3)
        machine.the_extender_hears(10_000)
        for uid in sorted(machine.server.pods):
            if not gated(machine.server.pods[uid]):
                machine.schedule(uid)
        machine.everything_settles()
        assert len(bound_of(machine)) == 3


def test_places_that_ended_before_anybody_took_them_are_given_anew_and_whole() -> None:
    machine = Gangs()
    machine.a_gang_comes(3, 4, 0, 0)
    machine.the_controller_hears(10_000)
    machine.the_controller_acts([], 3)
    machine.time_passes(HOLD_SECONDS)
    machine.the_extender_hears(10_000)
    assert not any(machine.schedule(f"g1-{i}") for i in range(3)), "without a place nobody of a gang starts"
    machine.pods_come_alone_and_are_bound_at_once(4, 2)
    machine.everything_settles()
    assert not any(uid.startswith("g") for uid in bound_of(machine))
    machine.server.delete("alone2")
    machine.everything_settles()
    assert len(bound_of(machine)) == 4


def test_a_gang_that_has_waited_too_long_is_passed_by_nobody() -> None:
    """What becomes free is kept for it, card by card, while smaller gangs and single pods want it too."""
    machine = Gangs()
    machine.pods_come_alone_and_are_bound_at_once(4, 4)
    machine.a_gang_comes(3, 4, 0, 0)
    machine.time_passes(CONFIGURATION.gangs.patience_seconds + 1)
    machine.a_gang_comes(1, 4, 0, 0)
    machine.everything_settles()
    for i in range(3):
        machine.server.delete(f"alone{i + 1}")
        machine.everything_settles()
        machine.pods_come_alone_and_are_bound_at_once(4, 1)
    assert {"g5-0", "g5-1", "g5-2", "alone4"} == bound_of(machine)
