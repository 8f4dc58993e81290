"""One replica leads at a time, and acts once it has seen all that was decided before."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gputile.controlplane import leader_election
from gputile.controlplane.leader_election import LeaderElection, LeaderGate, NoLease, NotReady
from gputile.kube.client import Clock, Connection
from gputile.kube.errors import AnswerLost, KubeError
from gputile.kube.lease import LeaseHolder, LeaseState
from tests.fakes.apiserver import FakeApiServer, until

pytestmark = pytest.mark.requirement("B1")


LEASE_S, MARGIN_S = 15, 5
LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
LEASE: dict[str, object] = {"metadata": {"name": "controller"}, "spec": {"leaseDurationSeconds": 1}}


class Stage:
    """One replica on an API server with a Lease that nobody holds, and a clock that only moves when told."""

    def __init__(self, server: FakeApiServer, connection: Connection) -> None:
        self.server = server
        self.time = 0.0
        self.story = list[str]()
        self.catch_up: Callable[[], Awaitable[None]] = self.list
        self.connection = connection
        self.restart()

    def restart(self) -> None:
        """Let another process of the same name be the replica."""
        state = LeaseState("a", LEASE_S, MARGIN_S)
        self.lease = LeaseHolder(
            self.connection, "ns", "controller", state, within=60.0, clock=Clock(monotonic=lambda: self.time)
        )
        self.election = LeaderElection(self.lease, lambda _: self.catch_up(), lambda: self.story.append("leads"))

    async def list(self) -> None:
        self.story.append("lists")

    @property
    def holder(self) -> str:
        """Who holds the Lease, as the API server has it."""
        spec: dict[str, str] = self.server.store[LEASES]["controller"]["spec"]
        return spec.get("holderIdentity", "")


@asynccontextmanager
async def on_stage() -> AsyncIterator[Stage]:
    server = FakeApiServer()
    server.put(LEASES, LEASE)
    async with server.connected() as connection:
        yield Stage(server, connection)


@pytest.mark.anyio
async def test_after_a_lapse_everything_is_looked_at_again_without_a_new_list() -> None:
    async with on_stage() as scene:
        await scene.election.lead()
        await scene.election.lead()
        assert scene.story == ["lists", "leads"]
        scene.time += 10 * LEASE_S
        scene.server.refused[f"{LEASES}/controller"] = (500, "InternalError")
        with pytest.raises(KubeError):
            await scene.election.lead()
        assert not scene.election.leads()
        scene.server.refused.clear()
        await scene.election.lead()
        assert scene.election.leads()
        assert scene.story == ["lists", "leads", "leads"]


@pytest.mark.anyio
async def test_a_lease_that_was_deleted_and_made_anew_is_another_one() -> None:
    """Its count of holders begins anew, and may come to the same number: another replica may have acted meanwhile."""

    async with on_stage() as scene:
        await scene.election.lead()
        before = scene.lease.term
        scene.time += LEASE_S
        scene.server.put(LEASES, {**LEASE, "metadata": {"name": "controller", "uid": "by-hand"}})
        assert not scene.election.leads()
        await scene.election.lead()
        assert scene.election.leads()
        assert scene.lease.term[1] == before[1], "the same number of another Lease"
        assert scene.story == ["lists", "leads", "lists", "leads"]


@pytest.mark.anyio
async def test_a_replica_stands_by_and_leads_when_the_lease_is_free(caplog: pytest.LogCaptureFixture) -> None:
    async with on_stage() as scene:
        held = {"holderIdentity": "b", "leaseDurationSeconds": LEASE_S, "leaseTransitions": 1}
        scene.server.put(LEASES, {**LEASE, "spec": held})
        with pytest.raises(NotReady, match="b leads"):
            await scene.election.lead()
        running = asyncio.create_task(scene.election.run(0.001))
        await asyncio.sleep(0.01)
        assert not scene.election.leads()
        scene.time += LEASE_S
        await until(scene.election.leads)
        scene.server.put(LEASES, {**LEASE, "spec": held})
        await until(lambda: "no longer leads" in caplog.text)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert caplog.text.count("no longer leads") == 1, "a standby says nothing"


@pytest.mark.anyio
async def test_while_the_lease_is_new_a_replica_says_that_nobody_leads_yet() -> None:
    """People read it in the Event of a pod that comes right after the installation."""
    async with on_stage() as scene:
        del scene.server.store[LEASES]["controller"]
        with pytest.raises(NotReady, match=r"^no replica leads yet: the Lease is new$"):
            await scene.election.lead()


@pytest.mark.anyio
async def test_a_replica_that_stops_while_it_lists_lets_the_lease_lapse() -> None:
    """The request that made it take over outlives its server, which waits for requests only for a while.

    A Lease that was released would tell the next replica that nobody has left a write under way.
    """
    async with on_stage() as scene:
        listing, over = asyncio.Event(), asyncio.Event()

        async def list_for_long() -> None:
            listing.set()
            await over.wait()

        scene.catch_up = list_for_long
        leading = asyncio.create_task(scene.election.lead())
        await listing.wait()
        written = scene.server.count("patch")
        await scene.election.resign(release=True)
        over.set()
        with pytest.raises(NotReady):
            await leading
        assert not scene.election.leads()
        assert scene.story == []
        assert scene.holder == "a"
        assert scene.server.count("patch") == written


@pytest.mark.anyio
async def test_a_replica_that_stops_while_it_renews_gives_the_lease_back() -> None:
    """Whoever waits for the answer is ended, and another version of the Lease is stored than the replica knows."""
    async with on_stage() as scene:
        await scene.election.lead()
        scene.server.fault("patch", "lose")
        await scene.election.renew(wanted=True)
        await scene.election.resign(release=True)
        assert scene.holder == ""


class Replica:
    """A gate on a real Lease, which counts how often it listed anew, and fenced earlier Bindings off."""

    def __init__(self, scene: Stage, name: str) -> None:
        self.listed = 0
        self.fenced = list[bool]()
        state = LeaseState(name, LEASE_S, MARGIN_S)
        lease = LeaseHolder(
            scene.connection, "ns", "controller", state, within=10.0, clock=Clock(monotonic=lambda: scene.time)
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


@pytest.mark.anyio
async def test_a_restarted_replica_of_the_same_name_resumes_at_once_and_lists() -> None:
    async with on_stage() as scene:
        assert await Replica(scene, "pod-0").admitted()
        restarted = Replica(scene, "pod-0")
        assert await restarted.admitted()
        assert restarted.listed == 1
        assert restarted.fenced == [True], "the one before may have left a Binding under way"


@pytest.mark.anyio
async def test_without_a_lease_the_first_call_fences_and_lists() -> None:
    fenced = list[bool]()

    async def refresh(fence: bool) -> None:
        fenced.append(fence)
        await asyncio.sleep(0)
        if len(fenced) == 1:
            raise AnswerLost("timed out")

    election = LeaderElection(NoLease(), refresh)
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
            await until(lambda: len(scene.server.requests) >= sent + 2)

        first.catch_up = long_list
        asked = asyncio.create_task(first.admitted())
        await until(lambda: scene.server.count("patch") >= 2)
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
