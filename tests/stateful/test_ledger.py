"""The ledger as a cluster uses it: whatever comes in whatever order, it agrees with the API server's objects.

What must hold after every step:

* a GPU that got nothing but decisions of gputile, under one description of its node, is never over-allocated, and no
  decision gives away what somebody else claims, true or not;
* the incremental ledger equals one rebuilt from the objects that were seen and the binds under way;
* the scores that a Placer keeps equal those of a new one;
* what is wrong with one object changes no other node.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.allocation import encode_allocation
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger, LedgerError
from gputile.core.ledger.node_arrays import Changes
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from tests.conftest import examples
from tests.fakes.corebuilders import allocation_text, gpu_node, pod, request_of, share
from tests.stateful.ledgercheck import image, overfull, states, unused_rows_are_empty

NAMES = ("n0", "n1", "n2")
CONFIGURATION = Configuration(max_pods_per_gpu=3)
ASKS: list[dict[str, int]] = [
    {"mem": 1},
    {"mem": 7},
    {"mem": 2, "core": 40},
    {"mem": 8, "count": 2},
    {"nvidia.com/gpu": 1},
    {"nvidia.com/gpu": 2},
    {"aliyun.com/gpu": 2},
]

TWICE = '{"version":1,"cards":[{"index":0,"uuid":"a","mib":9000},{"index":1,"uuid":"a","mib":9000}]}'
GARBAGE = [None, "", "{", TWICE, '{"version":9}']


def good_nodes(name: str) -> st.SearchStrategy[Node]:
    return st.builds(
        gpu_node,
        st.just(name),
        mode=st.sampled_from(["cgpu", "core_mem", "share", "", "topology", "mps"]),
        sizes=st.lists(st.sampled_from([15360, 15109, 4096]), min_size=1, max_size=3),
        unhealthy=st.just([]) | st.lists(st.integers(0, 2), max_size=1),
        placement=st.sampled_from(["", "spread"]),
        unit_mib=st.sampled_from([0, 0, 0, 128]),
    )


def bound(asking: Pod, node: str, annotations: dict[str, str]) -> Pod:
    meta = msgspec.structs.replace(asking.metadata, annotations={**asking.metadata.annotations, **annotations})
    return msgspec.structs.replace(asking, metadata=meta, spec=msgspec.structs.replace(asking.spec, node_name=node))


def asking_pod(uid: str, asks: dict[str, int], **where: Any) -> Pod:
    return pod(uid, **where, asks=asks)


def waits(asking: Pod) -> bool:
    return not asking.spec.node_name and not asking.finished


class Cluster(RuleBasedStateMachine):
    """``server_*`` is what the API server has, ``seen`` the pods as the watch has told of them so far."""

    underway = Bundle("underway")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(CONFIGURATION)
        self.ledger.changes = Changes(retained=3)  # so that falling behind further than the log reaches happens here
        self.engine = PlacementEngine(self.ledger)
        self.server_nodes: dict[str, Node] = {}
        self.server_pods: dict[str, Pod] = {}
        self.seen: dict[str, Pod] = {}
        self.assumed: dict[str, Booking] = {}
        self.suspect: set[tuple[str, str]] = set()  # GPUs of which something but decisions of gputile was told
        self.count = 0

    def in_order(self) -> bool:
        """Whether all nodes are there and serve: trouble is only interesting where there is something to lose."""
        return [bool(state.gpus) and not state.blocked_by for state in states(self.ledger).values()] == [True] * 3

    def new_uid(self) -> str:
        self.count += 1
        return f"p{self.count}"

    # -- nodes

    def suspect_gpus(self, node: str) -> None:
        self.suspect |= {(node, s.uuid) for booking in self.ledger.on_node(node) for s in booking.gpus}

    def tell_node(self, node: Node) -> None:
        name = node.metadata.name
        others = {other: state for other, state in states(self.ledger).items() if other != name}
        self.suspect_gpus(name)
        self.server_nodes[name] = node
        self.ledger.apply_node(node)
        assert {other: state for other, state in states(self.ledger).items() if other != name} == others

    @initialize(some=st.tuples(*(good_nodes(name) for name in NAMES)))
    def nodes_come(self, some: tuple[Node, ...]) -> None:
        for node in some:
            self.tell_node(node)

    @rule(node=st.sampled_from(NAMES).flatmap(good_nodes))
    def node_changes(self, node: Node) -> None:
        """Mode, unit, placement, GPUs: they come, change, sicken, vanish."""
        self.tell_node(node)

    @precondition(in_order)
    @rule(name=st.sampled_from(NAMES), mode=st.sampled_from(["", "cgpu", "unheard-of"]), text=st.sampled_from(GARBAGE))
    def node_talks_nonsense(self, name: str, mode: str, text: str | None) -> None:
        self.tell_node(gpu_node(name, mode=mode, inventory=text))
        if text is not None:
            assert not states(self.ledger)[name].gpus

    @precondition(in_order)
    @rule(
        name=st.sampled_from(NAMES), change=st.none() | st.sampled_from(NAMES).flatmap(good_nodes), listed=st.booleans()
    )
    def node_goes(self, name: str, change: Node | None, listed: bool) -> None:
        """Another node may have changed while nobody watched; then it is a list that tells."""
        self.suspect_gpus(name)
        self.server_nodes.pop(name, None)
        if change is not None or listed:
            if change is not None:
                self.suspect_gpus(change.metadata.name)
                self.server_nodes[change.metadata.name] = change
            self.ledger.replace_nodes(list(self.server_nodes.values()))
        else:
            self.ledger.remove_node(name)

    # -- pods that gputile places

    @rule(target=underway, asks=st.sampled_from(ASKS), namespace=st.sampled_from("ab"), count=st.integers(1, 4))
    def pods_are_created_and_decided(self, asks: dict[str, int], namespace: str, count: int) -> object:
        uids = [self.create(asks, namespace) for _ in range(count)]
        return multiple(*[uid for uid in uids if self.decide(uid)])

    def create(self, asks: dict[str, int], namespace: str) -> str:
        uid = self.new_uid()
        self.server_pods[uid] = self.seen[uid] = asking_pod(uid, asks, namespace=namespace)
        self.ledger.apply_pod(self.seen[uid])
        return uid

    @rule(target=underway)
    def pods_that_wait_are_tried_again(self) -> object:
        return multiple(*[uid for uid, asking in self.seen.items() if waits(asking) and self.decide(uid)])

    def decide(self, uid: str) -> bool:
        asking = self.seen[uid]
        if uid in self.assumed:
            return False
        request = request_of(asking)
        fitting = self.engine.filter(request, NAMES).feasible
        if not fitting:
            return False
        ranks = self.engine.rank(request, fitting)
        node = fitting[ranks.index(max(ranks))]
        decision = self.engine.decide(request, node, 1)
        assert isinstance(decision, Decision), "what filter lets through, decide places"
        booking = decision.booking(asking, request, 0.0)
        assert booking is not None
        assert not self.ledger.unplaced(node), "a pod on unknown GPUs could be on any"
        self.ledger.assume(booking)
        for gpu in states(self.ledger)[node].gpus:
            assert not booking.on_gpu(gpu.gpu.uuid) or not overfull(self.ledger, states(self.ledger)[node], gpu), (
                "whatever others claim of a GPU, nothing is given away beside it that it does not have"
            )
        self.assumed[uid] = booking
        with pytest.raises(LedgerError):
            self.ledger.assume(booking)
        return True

    @rule(target=underway, asks=st.sampled_from(ASKS[:4]), namespace=st.sampled_from("ab"), count=st.integers(1, 9))
    def pods_come_and_run(self, asks: dict[str, int], namespace: str, count: int) -> object:
        uids = [self.create(asks, namespace) for _ in range(count)]
        for uid in uids:
            if self.decide(uid):
                self.bind_is_executed(uid)
                self.watch_tells_of_the_pod(uid)
        return multiple(*uids)

    @rule(uid=underway)
    def bind_is_executed(self, uid: str) -> None:
        """The API server has it; the watch has not told yet, and the answer may be lost."""
        booking, asking = self.assumed.get(uid), self.server_pods.get(uid)
        if booking is not None and booking.allocation is not None and asking is not None and not asking.spec.node_name:
            text = encode_allocation(booking.allocation)
            self.server_pods[uid] = bound(asking, booking.node, {ALLOCATION_ANNOTATION: text})

    @rule(uid=underway)
    def watch_tells_of_the_pod(self, uid: str) -> None:
        if uid in self.server_pods:
            self.see(self.server_pods[uid])

    def see(self, told: Pod) -> None:
        uid = told.metadata.uid
        self.seen[uid] = told
        if told.spec.node_name or told.finished:
            self.assumed.pop(uid, None)
        self.ledger.apply_pod(told)

    @rule(uid=underway)
    def bind_is_known_to_have_failed(self, uid: str) -> None:
        asking = self.server_pods.get(uid)
        if asking is None or not asking.spec.node_name:
            self.assumed.pop(uid, None)
            self.ledger.forget(uid)

    @rule(uid=underway)
    def old_news_of_the_unbound_pod_arrives(self, uid: str) -> None:
        before = self.ledger.booking(uid)
        asking = self.seen.get(uid)
        if asking is not None and not asking.finished:
            spec = msgspec.structs.replace(asking.spec, node_name="")
            self.ledger.apply_pod(msgspec.structs.replace(asking, spec=spec))
            assert self.ledger.booking(uid) == before

    @rule(uid=underway)
    def forgetting_comes_too_late(self, uid: str) -> None:
        if uid not in self.assumed:
            before = self.ledger.booking(uid)
            self.ledger.forget(uid)
            assert self.ledger.booking(uid) == before

    # -- pods end

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), phase=st.sampled_from(["Succeeded", "Failed"]))
    def pod_finishes(self, data: st.DataObject, phase: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.seen)))
        if uid in self.server_pods:
            status = msgspec.structs.replace(self.server_pods[uid].status, phase=phase)
            self.server_pods[uid] = msgspec.structs.replace(self.server_pods[uid], status=status)
            self.see(self.server_pods[uid])
            assert self.ledger.booking(uid) is None

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def pod_is_only_asked_to_go(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.seen)))
        if uid in self.server_pods and self.seen[uid].spec.node_name:
            before = self.ledger.booking(uid)
            meta = msgspec.structs.replace(self.seen[uid].metadata, deletion_timestamp="2030-01-01T00:00:00Z")
            self.server_pods[uid] = msgspec.structs.replace(self.seen[uid], metadata=meta)
            self.see(self.server_pods[uid])
            assert self.ledger.booking(uid) == before

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), told=st.booleans())
    def pod_is_gone(self, data: st.DataObject, told: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.seen)))
        self.server_pods.pop(uid, None)
        if told:
            self.seen.pop(uid)
            self.assumed.pop(uid, None)
            self.ledger.remove_pod(uid)

    @rule(caught_up=st.booleans())
    def pods_are_listed(self, caught_up: bool) -> None:
        """A list may be older than a bind under way: then the pod is in it without a node."""
        listed = dict(self.server_pods)
        if not caught_up:
            listed |= {uid: self.seen[uid] for uid in self.assumed if uid in listed and uid in self.seen}
        self.seen = listed
        for uid, told in listed.items():
            if told.spec.node_name or told.finished:
                self.assumed.pop(uid, None)
        self.ledger.replace_pods(list(listed.values()))

    # -- pods that others bound, and lies

    @rule(
        node=st.sampled_from([*NAMES, "nowhere"]),
        asks=st.sampled_from(ASKS),
        namespace=st.sampled_from("ab"),
        gpus=st.lists(st.integers(0, 4), max_size=2, unique=True),
        mib=st.sampled_from([0, 1, 1024, 15360, 2**24]),
        percent=st.sampled_from([0, 50, 100]),
        whole=st.booleans(),
        garbage=st.booleans(),
    )
    def somebody_binds_a_pod(
        self,
        node: str,
        asks: dict[str, int],
        namespace: str,
        gpus: list[int],
        mib: int,
        percent: int,
        whole: bool,
        garbage: bool,
    ) -> None:
        """With an annotation that lies or is garbage, or with none at all."""
        uid = self.new_uid()
        if not gpus and not self.in_order():
            gpus = [0]
        held = [share(f"GPU-{node}-{gpu}", mib, percent) for gpu in gpus]
        text = {ALLOCATION_ANNOTATION: allocation_text(*held, whole=whole) if held else "{"}
        self.suspect |= {(node, s.uuid) for s in held}
        others = {name: state for name, state in states(self.ledger).items() if name != node}
        annotations = text if held or garbage else {}
        self.server_pods[uid] = asking_pod(uid, asks, namespace=namespace, node=node, annotations=annotations)
        self.see(self.server_pods[uid])
        assert {name: state for name, state in states(self.ledger).items() if name != node} == others
        if not held:
            assert [booking.uid for booking in self.ledger.unplaced(node)].count(uid) == 1

    # -- what must hold

    @invariant()
    def no_gpu_is_over_allocated(self) -> None:
        for name, node in states(self.ledger).items():
            for gpu in node.gpus:
                if gpu.empty:
                    self.suspect.discard((name, gpu.gpu.uuid))
                elif (name, gpu.gpu.uuid) not in self.suspect:
                    assert not overfull(self.ledger, node, gpu), f"GPU {gpu.gpu.index} of {name}"

    @invariant()
    def the_ledger_is_what_the_objects_say(self) -> None:
        fresh = Ledger(CONFIGURATION)
        fresh.replace_pods(list(self.seen.values()))
        fresh.replace_nodes(list(reversed(self.server_nodes.values())))
        for booking in self.assumed.values():
            fresh.assume(booking)
        assert image(self.ledger) == image(fresh)
        assert unused_rows_are_empty(self.ledger)

    @rule(asks=st.sampled_from(ASKS), listed=st.booleans())
    def a_plan_is_computed_on_a_snapshot(self, asks: dict[str, int], listed: bool) -> None:
        """Whatever leaves or is booked there, the ledger stays as it is, and goes on without the snapshot seeing it."""
        before, snapshot = image(self.ledger), self.engine.snapshot()
        assert image(snapshot.ledger) == before
        assert states(snapshot.ledger) == states(self.ledger)
        if listed:
            snapshot.ledger.replace_pods([])
        for booking in list(snapshot.ledger.bookings()):
            snapshot.ledger.remove_pod(booking.uid)
        asking = asking_pod("planned", asks)
        for name in snapshot.filter(request_of(asking), NAMES).feasible[:1]:
            decision = snapshot.decide(request_of(asking), name, 1)
            booked = decision.booking(asking, request_of(asking), 0.0) if isinstance(decision, Decision) else None
            if booked is not None:
                snapshot.ledger.assume(booked)
        snapshot.ledger.remove_node(NAMES[0])
        assert image(self.ledger) == before
        planned = image(snapshot.ledger)
        self.ledger.replace_nodes([])
        assert image(snapshot.ledger) == planned
        self.ledger.replace_nodes(list(self.server_nodes.values()))

    @precondition(lambda self: self.count % 3 == 0)
    @rule()
    def kept_scores_are_those_of_a_new_placer(self) -> None:
        for asks in ASKS:
            for namespace in "ab":
                request = request_of(asking_pod("p", asks, namespace=namespace))
                for shape in (request.shape, None):
                    fresh = PlacementEngine(self.ledger).scores(shape, request.host)
                    assert self.engine.scores(shape, request.host).tolist() == fresh.tolist()

    def teardown(self) -> None:
        self.kept_scores_are_those_of_a_new_placer()


Cluster.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestLedger = Cluster.TestCase
