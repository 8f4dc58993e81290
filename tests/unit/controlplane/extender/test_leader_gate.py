"""One replica decides at a time, and only after it has seen all that was decided before."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gputile.controlplane import leader_election
from gputile.controlplane.extender.leader_gate import LeaderGate
from gputile.controlplane.leader_election import LeaderElection, NotReady, SoleReplica
from gputile.kube.client import Attempts, Connection
from gputile.kube.errors import AnswerLost
from gputile.kube.lease import LeaseHolder, LeaseState
from gputile.kube.timing import Clock
from tests.fakes.apiserver import FakeApiServer, until
from tests.unit.kube.views import QUICK

pytestmark = pytest.mark.requirement("B1")

LEASE_S, MARGIN_S = 15, 5
LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"


class Replica:
    """A gate on a real Lease, which counts how often it listed anew, and fenced earlier Bindings off."""

    def __init__(self, scene: "Scene", name: str) -> None:
        self.listed = 0
        self.fenced = list[bool]()
        state = LeaseState(name, LEASE_S, MARGIN_S)
        lease = LeaseHolder(
            scene.connection, "ns", "extender", state, within=10.0, clock=Clock(monotonic=lambda: scene.time)
        )
        self.election = LeaderElection(lease, lambda fence: self.catch_up(fence))  # noqa: PLW0108 - tests replace it
        self.gate = LeaderGate(self.election, lambda: scene.time)
        self.catch_up: Callable[[bool], Awaitable[None]] = self.list

    async def list(self, fence: bool) -> None:
        self.listed += 1
        self.fenced.append(fence)
        await asyncio.sleep(0)

    async def admitted(self) -> bool:
        try:
            await self.gate.admit()
        except NotReady:
            return False
        return self.election.leads()


class Scene:
    """Replicas on one API server, with a clock that only moves when told."""

    def __init__(self, server: FakeApiServer, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.time = 0.0


@asynccontextmanager
async def on_stage() -> AsyncIterator[Scene]:
    server = FakeApiServer()
    server.put(LEASES, {"metadata": {"name": "extender"}, "spec": {"leaseDurationSeconds": 1}})  # one that was released
    async with server.running(), Connection(server.access(), attempts=Attempts(2, QUICK)) as connection:
        yield Scene(server, connection)


@pytest.mark.anyio
async def test_the_first_to_be_asked_acts_and_the_other_does_not() -> None:
    async with on_stage() as scene:
        first, second = Replica(scene, "first"), Replica(scene, "second")
        assert not first.election.leads()
        assert await first.admitted()
        assert first.listed == 1
        assert not await second.admitted()
        with pytest.raises(NotReady, match="first is the active one"):
            await second.gate.admit()
        assert second.listed == 0


@pytest.mark.anyio
async def test_who_takes_over_lists_first_and_the_old_one_stops_before() -> None:
    async with on_stage() as scene:
        first, second = Replica(scene, "first"), Replica(scene, "second")
        assert await first.admitted()
        assert not await second.admitted()  # sees the lease for the first time
        scene.time += LEASE_S - MARGIN_S
        assert not first.election.leads(), "the holder stops before anybody may take over"
        assert not await second.admitted()
        scene.time += MARGIN_S
        assert await second.admitted()
        assert second.listed == 1
        assert not await first.admitted()


@pytest.mark.anyio
async def test_a_lease_that_only_lapsed_needs_no_new_list() -> None:
    async with on_stage() as scene:
        only = Replica(scene, "only")
        assert await only.admitted()
        scene.time += 10 * LEASE_S
        assert not only.election.leads()
        assert await only.admitted()
        assert only.listed == 1, "nobody else can have decided anything"


@pytest.mark.anyio
async def test_a_list_that_was_begun_before_another_decided_is_not_enough() -> None:
    async with on_stage() as scene:
        first, second = Replica(scene, "first"), Replica(scene, "second")

        async def slow_list(_: bool) -> None:
            """Another one takes over and decides meanwhile, and gives the Lease back."""
            first.catch_up = first.list
            assert not await second.admitted()
            scene.time += LEASE_S + MARGIN_S
            assert await second.admitted()
            await second.election.resign(release=True)

        first.catch_up = slow_list
        assert not await first.admitted()
        assert await first.admitted()
        assert first.listed == 1, "and that one was begun after the other's last decision"


@pytest.mark.anyio
async def test_who_gets_it_back_lists_what_the_other_did() -> None:
    async with on_stage() as scene:
        first, second = Replica(scene, "first"), Replica(scene, "second")
        assert await first.admitted()
        assert not await second.admitted()
        scene.time += LEASE_S
        assert await second.admitted()
        await second.election.resign(release=True)
        assert await first.admitted()
        assert (first.listed, second.listed) == (2, 1)


@pytest.mark.anyio
async def test_a_restarted_replica_of_the_same_name_resumes_at_once_and_lists() -> None:
    async with on_stage() as scene:
        assert await Replica(scene, "pod-0").admitted()
        restarted = Replica(scene, "pod-0")
        assert await restarted.admitted()
        assert restarted.listed == 1
        assert restarted.fenced == [True], "the one before may have left a Binding under way"


@pytest.mark.anyio
async def test_who_takes_over_from_one_that_died_fences_and_after_one_that_released_does_not() -> None:
    async with on_stage() as scene:
        first, second = Replica(scene, "first"), Replica(scene, "second")
        assert await first.admitted()
        assert first.fenced == [False], "nobody had held the Lease"
        await first.election.resign(release=True)
        assert await second.admitted()
        assert second.fenced == [False]
        third = Replica(scene, "third")
        assert not await third.admitted()
        scene.time += LEASE_S + MARGIN_S
        assert await third.admitted()
        assert third.fenced == [True]


@pytest.mark.anyio
async def test_who_stops_before_it_has_fenced_leaves_that_to_the_next() -> None:
    """The first died with a Binding under way, and the second stops while it takes over."""
    async with on_stage() as scene:
        first, second, third = (Replica(scene, name) for name in ("first", "second", "third"))
        assert await first.admitted()
        assert not await second.admitted()
        scene.time += LEASE_S
        fencing, over = asyncio.Event(), asyncio.Event()

        async def fence(_: bool) -> None:
            fencing.set()
            await over.wait()

        second.catch_up = fence
        asked = asyncio.create_task(second.admitted())
        await fencing.wait()
        await second.election.resign(release=True)
        await third.admitted()
        scene.time += LEASE_S
        assert await third.admitted()
        assert third.fenced == [True]
        over.set()
        assert not await asked


@pytest.mark.anyio
async def test_who_has_a_binding_without_an_answer_does_not_release() -> None:
    async with on_stage() as scene:
        first, second = Replica(scene, "first"), Replica(scene, "second")
        assert await first.admitted()
        await first.election.resign(release=False)
        assert not first.election.leads()
        assert not await second.admitted()
        scene.time += LEASE_S
        assert await second.admitted()
        assert second.fenced == [True]


@pytest.mark.anyio
async def test_a_deleted_lease_never_makes_two_replicas_active() -> None:
    """The holder does not know yet that its Lease is gone: it may act until the end of what it had."""

    async with on_stage() as scene:
        first, second = Replica(scene, "first"), Replica(scene, "second")
        assert await first.admitted()
        scene.server.delete(LEASES, "extender")
        for _ in range(LEASE_S - 1):
            assert not await second.admitted()
            assert not (first.election.leads() and second.election.leads())
            scene.time += 1
        assert not first.election.leads()
        scene.time += 1
        assert await second.admitted()
        assert second.fenced == [True]


@pytest.mark.anyio
async def test_a_lease_of_the_same_name_is_another_one() -> None:
    """Its count of holders begins anew, and comes to what a replica had seen of the one before."""

    async with on_stage() as scene:
        first, second = Replica(scene, "first"), Replica(scene, "second")
        assert await first.admitted()
        scene.server.delete(LEASES, "extender")
        assert not await second.admitted()
        scene.time += LEASE_S
        assert await second.admitted()
        scene.time += LEASE_S
        scene.server.put(LEASES, {"metadata": {"name": "extender", "uid": "by-hand"}, "spec": {}})
        assert not await first.admitted(), "the second may act still"
        scene.time += LEASE_S
        assert await first.admitted()
        assert first.listed == 2, "the second has decided meanwhile"
        assert first.fenced == [False, True], "and may have left Bindings under way"


@pytest.mark.anyio
async def test_without_a_lease_the_first_call_fences_and_lists() -> None:
    fenced = list[bool]()

    async def refresh(fence: bool) -> None:
        fenced.append(fence)
        await asyncio.sleep(0)
        if len(fenced) == 1:
            raise AnswerLost("timed out")

    election = SoleReplica(refresh)
    gate = LeaderGate(election, lambda: 0.0)
    with pytest.raises(NotReady, match="timed out"):
        await gate.admit()
    assert not election.leads()
    await asyncio.gather(*(gate.admit() for _ in range(5)))
    assert fenced == [True, True]
    assert election.leads()
    await election.resign(release=True)
    assert not election.leads()


@pytest.mark.anyio
async def test_calls_at_the_same_time_take_it_once() -> None:
    async with on_stage() as scene:
        only = Replica(scene, "only")
        assert await asyncio.gather(*(only.admitted() for _ in range(20))) == [True] * 20
        assert only.listed == 1


@pytest.mark.anyio
async def test_who_is_asked_no_more_while_it_lists_leaves_the_lease_to_who_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list may fail for ever on one replica, from which kube-scheduler's leader has moved to another."""
    monkeypatch.setattr(leader_election, "RENEW_EVERY_S", 0.001)
    async with on_stage() as scene:
        first, second = Replica(scene, "first"), Replica(scene, "second")

        over = asyncio.Event()

        async def long_list(_: bool) -> None:
            await over.wait()

        async def for_some_seconds() -> None:
            scene.time += LEASE_S - MARGIN_S - 1
            sent = len(scene.server.requests)
            # The second one was sent after the clock had moved.
            await until(lambda: len(scene.server.requests) >= sent + 2, 60)

        first.catch_up = long_list
        asked = asyncio.create_task(first.admitted())
        await until(lambda: scene.server.count("patch") >= 2, 60)
        for _ in range(3):
            await for_some_seconds()
        assert not await second.admitted(), "the first one is asked, and keeps the Lease while it lists"
        for _ in range(6):
            await for_some_seconds()
        renewed = scene.server.count("patch")
        await for_some_seconds()
        assert scene.server.count("patch") == renewed, "nobody has asked the first one for a minute"
        assert not await second.admitted()
        scene.time += LEASE_S
        assert await second.admitted()
        over.set()
        assert not await asked
