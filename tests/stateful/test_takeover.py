"""Two extenders, either of which may lead, and an API server that answers them late, falsely or not at all.

Bindings and all other requests are executed and not answered, executed at any later time, or refused; watches lag and
break; the Lease is lost, deleted, or taken while its holder does not know; extenders are killed, stopped and given
another configuration; both kube-schedulers ask at once, by what they were told last. Times of day jump, and monotonic
clocks do not run at the same rate.

What must hold after every step: no GPU has more booked than it has, no pod is bound twice, what kube-scheduler was told
to be bound is so, and an extender that takes itself for the active one knows all that is booked. Once everybody answers
again, each pod is bound that has room, and both extenders have booked what the objects say.
"""

import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import EXTENDER_LEASE
from gputile.core.ledger.ledger import Ledger
from tests.conftest import examples
from tests.fakes.corebuilders import mib_on_gpus
from tests.stateful.ledgercheck import image
from tests.stateful.takeovermodel import (
    BUDGETS,
    GIVES_UP_S,
    GPU_MIB,
    LEASE_S,
    LEASES,
    NODES,
    PODS,
    Fate,
    Kind,
    ModelServer,
    Replica,
    lease_body,
    pod_body,
)
from tests.stateful.virtualtime import VirtualTimeLoop
from tests.unit.controlplane.extender.builders import gpu_node

pytestmark = pytest.mark.requirement("B1")

NAMES = tuple(f"p{number}" for number in range(8))
UNITS = (8, 9, 11, 15, 15, 8, 4, 3)  # GiB of each pod; a GPU has 15
NODE_NAMES = ("a", "b")
CONFIGURATIONS = (Configuration(), Configuration(max_pods_per_gpu=2), Configuration(placement="spread"))
WHO = st.sampled_from((0, 0, 0, 1))
BINDING_FATES = st.lists(st.sampled_from([Fate.HELD, Fate.HELD, *Fate]), max_size=3)
SECONDS = st.sampled_from((0.5, 2.0, 5.0, 11.0, 16.0, 16.0, 31.0, 80.0))


@pytest.fixture(scope="module", autouse=True)
def memory_as_it_is() -> Iterator[None]:
    """Let no extender that ends have the garbage collector walk all objects: here they are those of all tests, too."""
    left = SimpleNamespace(freeze=lambda: None, unfreeze=lambda: None, collect=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gputile.controlplane.config_reload.gc", left)
        patch.setattr("gputile.controlplane.extender.informer.gc", left)
        yield


class TakeOver(RuleBasedStateMachine):
    """The cluster and both replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.server = ModelServer(self.loop)
        self.count = 0
        self.replicas: list[Replica] = []

    @initialize(stands_still=st.booleans(), rate=st.sampled_from((1.0, 0.9, 1.1)), there_is_a_lease=st.booleans())
    def begin(self, stands_still: bool, rate: float, there_is_a_lease: bool) -> None:
        """One API server of several that ``stands_still`` executes requests however late."""
        self.server.gives_up_s = float("inf") if stands_still else GIVES_UP_S
        self.server.store |= {BUDGETS: {}, PODS: {}, LEASES: {}}
        for name in NODE_NAMES:
            self.node_comes(name)
        if there_is_a_lease:
            self.server.put(LEASES, lease_body())
        for name in NAMES:
            self.create(name)
        self.replicas = [
            Replica("extender-a", self.server, 1.0, CONFIGURATIONS[0]),
            Replica("extender-b", self.server, rate, CONFIGURATIONS[0]),
        ]
        for replica in self.replicas:
            replica.start()
            replica.hears()
        self.pass_time(1.0)
        for number in range(3):
            self.replicas[0].ask(NAMES[number], False)
            self.pass_time(LEASE_TRIES_S)

    def pass_time(self, seconds: float = 0.0) -> None:
        while seconds > 0:
            self.a_moment_passes(min(seconds, 1.0))
            seconds -= 1.0
        self.a_moment_passes(0.0)

    def a_moment_passes(self, seconds: float) -> None:
        """While a Binding sent a minute ago may still be executed, all pods can be written to.

        Where they cannot, an extender relies on the time-out of 60 s (bindings.md, Exceptions).
        """
        long_ago = self.loop.time() - GIVES_UP_S
        if any(each.since <= long_ago and self.server.may_bind(each) for each in self.server.held):
            for replica in self.replicas:
                replica.connection.fates.pop(Kind.POD, None)
        self.loop.pass_time(seconds)
        self.server.give_up()

    # -- the cluster

    def create(self, name: str) -> None:
        self.count += 1
        self.server.put(PODS, pod_body(name, f"uid-{name}-{self.count}", UNITS[NAMES.index(name)]))

    def node_comes(self, name: str) -> None:
        self.server.put(NODES, json.loads(msgspec.json.encode(gpu_node(name))))

    @rule(name=st.sampled_from(NAMES), how=st.sampled_from(("again", "again", "gone", "finished", "touched")))
    def a_pod_changes(self, name: str, how: str) -> None:
        """It is deleted by force, and perhaps made again under its name; or it ends; or somebody writes to it."""
        pod = self.server.store[PODS].get(name)
        if pod is None:
            self.create(name)
        elif how in ("again", "gone"):
            self.server.delete(PODS, name)
            if how == "again":
                self.create(name)
        elif how == "finished" and pod["spec"].get("nodeName"):
            self.server.put(PODS, {**pod, "status": {"phase": "Succeeded"}})
        elif how == "touched":
            self.server.put(PODS, pod)
        self.pass_time()

    @rule(name=st.sampled_from(NODE_NAMES))
    def a_node_is_made_again(self, name: str) -> None:
        self.server.delete(NODES, name)
        self.pass_time()
        self.node_comes(name)
        self.pass_time()

    # -- kube-scheduler

    @rule(who=WHO, names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3), hears=st.booleans(),
          last=st.booleans(), fates=BINDING_FATES, seconds=st.sampled_from((0.0, 0.0, 1.0, 6.0)))  # fmt: skip
    def pods_are_tried(
        self, who: int, names: Sequence[str], hears: bool, last: bool, fates: Sequence[Fate], seconds: float
    ) -> None:
        replica = self.replicas[who]
        if hears:
            replica.hears()
        replica.connection.next_bindings = list(fates)
        for name in names:
            replica.ask(name, last)
        self.pass_time(seconds)

    @rule(
        first=WHO,
        under_way=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([Fate.HELD, *Fate])), max_size=4),
        lags=st.booleans(),
        dies=st.booleans(),
        again=st.booleans(),
    )
    def another_one_takes_over(
        self, first: int, under_way: Sequence[tuple[str, Fate]], lags: bool, dies: bool, again: bool
    ) -> None:
        """The first one is cut off with Bindings under way; they are executed once the other one has decided.

        What the first one has done before the other one has not heard of where its watch ``lags``. All pods may be made
        ``again`` before, so that there is room.
        """
        one, other = self.replicas[first], self.replicas[1 - first]
        self.calm(one)
        self.calm(other)
        self.pass_time(LEASE_S + 1.0)
        if lags:
            other.connection.fates[Kind.WATCH] = Fate.HELD
            self.server.poke()
        for name in NAMES if again else ():
            self.a_pod_changes(name, "again")
        one.hears()
        for name, fate in under_way:
            one.connection.next_bindings = [fate]
            one.ask(name, False)
            self.pass_time()
        if dies:
            one.kill()
        one.connection.fates = dict.fromkeys(Kind, Fate.UNREACHABLE)
        self.server.poke()
        others = [name for name in NAMES if name not in {name for name, _ in under_way}]
        for _ in range(4):
            other.hears()
            for name in others:
                other.ask(name, True)
            self.pass_time(6.0)
        self.held_requests_are_executed(0, len(self.server.held))

    @rule(who=WHO, fates=BINDING_FATES, fate=st.sampled_from(Fate), seconds=st.sampled_from((0.0, 16.0)))
    def answers_to_bindings_come_late(self, who: int, fates: Sequence[Fate], fate: Fate, seconds: float) -> None:
        """Other pods are bound before it is known what became of the first ones."""
        replica = self.replicas[who]
        replica.connection.next_bindings = list(fates)
        replica.connection.fates[Kind.POD] = fate
        for name in NAMES:
            replica.hears()
            replica.ask(name, False)
            self.pass_time(seconds if replica.connection.next_bindings else 0.0)
        self.held_requests_are_executed(0, len(self.server.held))
        replica.connection.fates.pop(Kind.POD, None)

    # -- the API server

    @rule(who=WHO, kind=st.sampled_from(Kind), fate=st.sampled_from(Fate))
    def requests_meet_a_fate(self, who: int, kind: Kind, fate: Fate) -> None:
        replica = self.replicas[who]
        replica.connection.fates[kind] = fate
        self.server.poke()
        self.pass_time()

    @rule(who=WHO)
    def all_is_answered(self, who: int) -> None:
        self.calm(self.replicas[who])
        self.pass_time()

    def calm(self, replica: Replica) -> None:
        replica.connection.fates.clear()
        replica.connection.next_bindings.clear()
        self.server.poke()

    @rule(number=st.integers(0, 3), most=st.integers(1, 4))
    def held_requests_are_executed(self, number: int, most: int) -> None:
        for held in self.server.held[number : number + most]:
            self.server.go_on(held)
        self.pass_time()

    @rule()
    def watches_are_too_old(self) -> None:
        self.server.compact()
        self.server.poke()
        self.pass_time()

    @rule(how=st.sampled_from(("deleted", "emptied")))
    def somebody_changes_the_lease(self, how: str) -> None:
        lease = self.server.store[LEASES].get(EXTENDER_LEASE)
        if lease is not None and how == "deleted":
            self.server.delete(LEASES, EXTENDER_LEASE)
        elif lease is not None:
            self.server.put(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})

    # -- time, and the processes

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(who=WHO, ahead_s=st.sampled_from((0.0, 90.0, -90.0, 2_400.0, -2_400.0)))
    def a_clock_jumps(self, who: int, ahead_s: float) -> None:
        self.replicas[who].ahead_s = ahead_s

    @rule(who=WHO)
    def an_extender_is_killed(self, who: int) -> None:
        self.replicas[who].kill()
        self.pass_time()

    @rule(who=WHO, configuration=st.sampled_from(CONFIGURATIONS), seconds=st.sampled_from((0.0, 1.0, 20.0)))
    def the_configuration_changes(self, who: int, configuration: Configuration, seconds: float) -> None:
        self.replicas[who].configuration = configuration
        self.replicas[who].reloader.configure(configuration)
        self.pass_time(seconds)

    @rule(who=WHO)
    def an_extender_is_stopped(self, who: int) -> None:
        """In order: it finishes what is under way. Its successor has its name."""
        replica = self.replicas[who]
        replica.reloader.stop()
        self.pass_time(16.0)
        replica.kill()
        self.pass_time()

    # -- what must hold

    @invariant()
    def nobody_is_wrong(self) -> None:
        self.server.no_gpu_has_more_than_it_may()
        bound = {
            pod.metadata.uid: pod.spec.node_name
            for pod in self.server.pods().values()
            if pod.spec.node_name and not pod.finished
        }
        for replica in self.replicas:
            replica.look()
            if replica.leads and replica.instance is not None:
                booked = {each.uid: each.node for each in replica.instance.ledger.bookings()}
                lost = {uid: node for uid, node in bound.items() if booked.get(uid) != node}
                assert not lost, f"{replica.name} leads and does not know of {lost}"
        assert sum(replica.leads for replica in self.replicas) < 2, "both lead"

    def teardown(self) -> None:
        try:
            if self.replicas:
                self.in_the_end()
        finally:
            self.loop.end()

    def in_the_end(self) -> None:
        for held in list(self.server.held):
            self.server.go_on(held)
        for replica in self.replicas:
            replica.configuration = CONFIGURATIONS[0]
            self.calm(replica)
            replica.reloader.configure(replica.configuration)
        self.pass_time(100.0)
        asked = self.replicas[0]
        for number in range(6):
            asked.hears()
            for name in NAMES:
                asked.ask(name, number % 2 == 0)
            self.pass_time(6.0)
            self.nobody_is_wrong()
        self.all_that_fit_are_bound()
        for replica in self.replicas:
            assert replica.instance is not None
            fresh = Ledger(replica.configuration)
            fresh.replace_nodes(self.server.nodes())
            fresh.replace_pods(list(self.server.pods().values()))
            assert image(replica.instance.ledger) == image(fresh), replica.name

    def all_that_fit_are_bound(self) -> None:
        used = mib_on_gpus(self.server.pods().values())
        free = [GPU_MIB - used.get(f"GPU-{node}-{gpu}", 0) for node in NODE_NAMES for gpu in range(2)]
        for name, pod in self.server.pods().items():
            if not pod.spec.node_name:
                assert UNITS[NAMES.index(name)] * 1024 > max(free), f"{name} waits, and would fit"


LEASE_TRIES_S = 6.0
# `make test` tells the same stories each time, `make soak` fresh ones.
TakeOver.TestCase.settings = settings(
    max_examples=examples(25),
    stateful_step_count=20,
    deadline=None,
    database=None,
    derandomize=settings.get_current_profile_name() != "soak",
)
TestTakeOver = TakeOver.TestCase


def test_who_takes_over_knows_what_was_bound_before_though_its_watch_lags() -> None:
    machine = TakeOver()
    try:
        machine.begin(stands_still=True, rate=1.0, there_is_a_lease=True)
        bound_before = [(name, Fate.FINE) for name in ("p3", "p4", "p1", "p0")]
        machine.another_one_takes_over(0, bound_before, True, True, True)
        machine.nobody_is_wrong()
    finally:
        machine.teardown()


def test_who_cannot_write_to_a_pod_knows_of_a_binding_that_is_executed_after_more_than_a_minute() -> None:
    machine = TakeOver()
    try:
        machine.begin(stands_still=True, rate=1.0, there_is_a_lease=False)
        machine.another_one_takes_over(0, [("p0", Fate.HELD)], True, False, False)
        machine.answers_to_bindings_come_late(1, [Fate.HELD] * 3, Fate.REFUSED, 16.0)
        machine.nobody_is_wrong()
    finally:
        machine.teardown()


def test_an_api_server_that_stood_still_has_its_minute_once_it_answers_again() -> None:
    """What it was sent before it reads only then. The extender may not write to the pod, and would need its GPU."""
    machine = TakeOver()
    try:
        machine.begin(stands_still=False, rate=1.0, there_is_a_lease=False)
        machine.pods_are_tried(0, ["p0"], True, False, [], 1.0)
        for name in NAMES:
            machine.a_pod_changes(name, "again")
        machine.pods_are_tried(0, ["p3"], True, False, [Fate.HELD], 1.0)
        (held,), connection = machine.server.held, machine.replicas[0].connection
        connection.fates = dict.fromkeys(Kind, Fate.LOST)
        for _ in range(2):
            machine.pass_time(50.0)
            held.since = machine.loop.time()
        connection.fates = {Kind.POD: Fate.REFUSED}
        for _ in range(2):
            machine.pods_are_tried(0, ["p4", "p2", "p1", "p0"], True, True, [], 6.0)
        machine.held_requests_are_executed(0, 1)
        machine.nobody_is_wrong()
        assert held.request.json()["metadata"]["uid"] in machine.server.bound
    finally:
        machine.teardown()
