"""A Lease has one holder, whatever happens to requests and replicas; two never both believe that they hold it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gputile.kube.client import Clock, Connection
from gputile.kube.errors import BadAnswer, Forbidden
from gputile.kube.lease import RELEASED_S, LeaseHolder, LeaseRecord, LeaseState, LeaseStep
from tests.conftest import examples
from tests.fakes.apiserver import FakeApiServer

LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"


class Scene:
    def __init__(self, server: FakeApiServer, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.time = 0.0

    def replica(self, identity: str) -> LeaseHolder:
        state = LeaseState(identity, duration=15, margin=3)
        return LeaseHolder(
            self.connection, "ns", "active", state, within=10.0, clock=Clock(monotonic=lambda: self.time)
        )

    def end_of(self, replica: LeaseHolder) -> float:
        """Return until when the replica believes that it holds the Lease, in whole seconds."""
        now = self.time
        while replica.valid():
            self.time += 1.0
        now, self.time = self.time, now
        return now

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.server.store[LEASES]["active"]["spec"]
        return spec


@asynccontextmanager
async def on_stage(*, there: bool = True) -> AsyncIterator[Scene]:
    """Play ``work``; ``there``: with a Lease that nobody has held yet."""
    server = FakeApiServer()
    if there:
        server.put(LEASES, {"metadata": {"name": "active"}, "spec": {"leaseDurationSeconds": 1}})
    async with server.connected() as connection:
        yield Scene(server, connection)


@pytest.mark.anyio
async def test_a_lease_is_taken_renewed_released_and_taken_by_another() -> None:
    async with on_stage() as scene:
        first, second = scene.replica("first"), scene.replica("second")
        assert not first.valid()
        assert await first.acquire()
        assert scene.end_of(first) == 12.0
        assert scene.spec["leaseDurationSeconds"] == 15
        assert not await second.acquire()
        assert second.holder == "first"
        scene.time = 10.0
        assert await first.renew()
        assert scene.end_of(first) == 22.0
        await first.release()
        assert not first.valid()
        assert scene.spec["holderIdentity"] == ""
        assert await second.acquire()
        assert scene.spec["holderIdentity"] == "second"
        assert scene.spec["leaseTransitions"] == 2
        assert second.vacated
        assert not await first.renew()


@pytest.mark.anyio
async def test_refusals_and_nonsense_are_raised() -> None:
    async with on_stage(there=False) as scene:
        scene.server.fault("post", "answer", status=403)
        with pytest.raises(Forbidden, match=r"POST .*/leases"):
            await scene.replica("first").acquire()
        scene.server.fault("get", "answer", status=200, body=b"[]")
        with pytest.raises(BadAnswer):
            await scene.replica("first").observe()


OFFSETS = (0.0, 1_000_000.0, -500.0)
REPLICAS = st.integers(0, len(OFFSETS) - 1)


@dataclass
class Write:
    """A request on its way: it takes effect when it arrives, if its version is still the current one."""

    record: LeaseRecord
    started: float
    stored: LeaseRecord | None = None
    arrived: bool = False


class Leases(RuleBasedStateMachine):
    """Replicas whose clocks differ, one request each in flight, and writes that arrive after their senders gave up."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.version = 0
        self.stored: LeaseRecord | None = None
        self.replicas = [LeaseState(f"r{i}", 5 + 3 * i, 0) for i in range(len(OFFSETS))]
        self.reads: dict[int, LeaseRecord | None] = {}
        self.writes: dict[int, Write] = {}
        self.strays: list[Write] = []

    def now(self, i: int) -> float:
        return self.time + OFFSETS[i]

    def idle(self, i: int) -> bool:
        return i not in self.reads and i not in self.writes

    def arrive(self, write: Write) -> None:
        write.arrived = True
        current = self.stored.resource_version if self.stored else ""
        if write.record.resource_version == current:
            self.version += 1
            self.stored = write.stored = replace(write.record, resource_version=str(self.version))

    @rule(seconds=st.floats(0.1, 7))
    def pass_time(self, seconds: float) -> None:
        self.time += seconds

    @rule(i=REPLICAS)
    def start_to_read(self, i: int) -> None:
        if self.idle(i):
            self.reads[i] = self.stored

    @rule(i=REPLICAS)
    def finish_reading(self, i: int) -> None:
        if i in self.reads:
            self.replicas[i].observe(self.reads.pop(i), self.now(i))

    @rule(i=REPLICAS)
    def start_to_write(self, i: int) -> None:
        if self.idle(i) and self.replicas[i].next_step(self.now(i)) is not LeaseStep.WAIT:
            self.writes[i] = Write(self.replicas[i].next_record(), self.now(i))

    @rule(i=REPLICAS)
    def start_to_release(self, i: int) -> None:
        replica = self.replicas[i]
        replica.give_up()
        if self.idle(i) and replica.record and replica.record.holder == replica.identity:
            self.strays.append(Write(replace(replica.record, holder="", duration=RELEASED_S), 0.0))

    @rule(i=REPLICAS)
    def write_arrives(self, i: int) -> None:
        if i in self.writes and not self.writes[i].arrived:
            self.arrive(self.writes[i])

    @rule(i=REPLICAS)
    def answer_to_write(self, i: int) -> None:
        if i in self.writes and self.writes[i].arrived:
            write = self.writes.pop(i)
            if write.stored:
                self.replicas[i].record_write(write.stored, write.started, self.now(i))

    @rule(i=REPLICAS)
    def answer_is_lost(self, i: int) -> None:
        if i in self.writes:
            self.strays.append(self.writes.pop(i))

    @rule(which=st.integers(0, 9))
    def stray_arrives(self, which: int) -> None:
        late = [stray for stray in self.strays if not stray.arrived]
        if which < len(late):
            self.arrive(late[which])

    @rule(i=REPLICAS)
    def restart(self, i: int) -> None:
        old = self.replicas[i]
        self.replicas[i] = LeaseState(old.identity, old.duration, old.margin)
        self.reads.pop(i, None)
        if i in self.writes:
            self.strays.append(self.writes.pop(i))

    @invariant()
    def at_most_one_is_sure(self) -> None:
        sure = [replica.identity for i, replica in enumerate(self.replicas) if replica.valid(self.now(i))]
        assert len(sure) <= 1


Leases.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=60, deadline=None)
TestLeases = Leases.TestCase


class DeletedLeases(Leases):
    """Somebody deletes the lease now and then. Only with one duration for all can a replica know how long to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = [LeaseState(f"r{i}", 5, 0) for i in range(len(OFFSETS))]

    @rule()
    def delete(self) -> None:
        self.stored = None

    @rule(duration=st.sampled_from([0.0, 2.0, 5.0]))
    def write_nobody_by_hand(self, duration: float) -> None:
        self.version += 1
        self.stored = LeaseRecord(str(self.version), "", duration)

    @rule(duration=st.sampled_from([0.0, 2.0]), holder=st.sampled_from(["", "somebody"]))
    def write_another_duration_by_hand(self, duration: float, holder: str) -> None:
        if self.stored is not None and self.stored.holder:
            self.version += 1
            holder = holder or self.stored.holder
            self.stored = replace(self.stored, resource_version=str(self.version), duration=duration, holder=holder)


DeletedLeases.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=60, deadline=None)
TestDeletedLeases = DeletedLeases.TestCase


@pytest.mark.parametrize(
    ("holder", "duration", "vacated"),
    [("", RELEASED_S, True), ("", 5.0, False), ("", 0.0, False), ("them", 5.0, False), ("me", 5.0, False)],
)
def test_who_takes_a_lease_knows_whether_it_was_released(holder: str, duration: float, vacated: bool) -> None:
    """Under the own name it is what the process before this one left behind."""
    mine = LeaseState("me", 15, 3)
    mine.observe(LeaseRecord("1", holder, duration, uid="u"), 0.0)
    assert mine.next_step(15.0) is not LeaseStep.WAIT
    for now in (15.0, 16.0):
        mine.record_write(replace(mine.next_record(), resource_version=str(now)), now, now)
        assert mine.vacated is vacated


@pytest.mark.parametrize("duration", [0.0, 2.0, 15.0])
@pytest.mark.parametrize("holder", ["", "them"])
def test_a_lease_that_was_not_released_is_taken_as_one_whose_holder_died(holder: str, duration: float) -> None:
    """Somebody may have written it by hand: the holder believes in its claim still, and for as long as it wrote."""
    mine = LeaseState("me", 15, 3)
    mine.observe(LeaseRecord("1", holder, duration, uid="u"), 100.0)
    assert mine.next_step(114.9) is LeaseStep.WAIT
    assert mine.next_step(115.0) is LeaseStep.ACQUIRE
