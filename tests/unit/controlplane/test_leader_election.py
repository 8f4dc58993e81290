"""A leader acts once its cache has caught up, and goes through everything again after its Lease had lapsed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gputile.api.well_known import LEADER_NOTE_ANNOTATION
from gputile.controlplane import leader_election
from gputile.controlplane.leader_election import LeaderElection, NotReady, SoleReplica
from gputile.kube.client import Attempts, Connection
from gputile.kube.errors import KubeError
from gputile.kube.lease import LeaseHolder, LeaseState
from gputile.kube.timing import Clock
from tests.fakes.apiserver import FakeApiServer, until
from tests.unit.kube.views import QUICK

pytestmark = pytest.mark.requirement("B1")

LEASE_S, MARGIN_S = 15, 5
LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
LEASE: dict[str, object] = {"metadata": {"name": "controller"}, "spec": {"leaseDurationSeconds": 1}}


class Scene:
    """One replica on an API server with a Lease that nobody holds, and a clock that only moves when told."""

    def __init__(self, server: FakeApiServer, connection: Connection) -> None:
        self.server = server
        self.time = 0.0
        self.story = list[str]()
        self.catch_up: Callable[[], Awaitable[None]] = self.list
        self.note = ""
        self.connection = connection
        self.restart()

    def restart(self) -> None:
        """Let another process of the same name be the replica."""
        state = LeaseState("a", LEASE_S, MARGIN_S)
        self.lease = LeaseHolder(
            self.connection, "ns", "controller", state, within=60.0, clock=Clock(monotonic=lambda: self.time)
        )
        self.election = LeaderElection(
            self.lease, lambda _: self.catch_up(), lambda: self.story.append("leads"), lambda: self.note
        )

    @property
    def noted(self) -> str:
        """What the API server has of the note."""
        annotations: dict[str, str] = self.server.store[LEASES]["controller"]["metadata"].get("annotations", {})
        return annotations.get(LEADER_NOTE_ANNOTATION, "")

    async def list(self) -> None:
        self.story.append("lists")

    @property
    def holder(self) -> str:
        """Who holds the Lease, as the API server has it."""
        spec: dict[str, str] = self.server.store[LEASES]["controller"]["spec"]
        return spec.get("holderIdentity", "")


@asynccontextmanager
async def on_stage() -> AsyncIterator[Scene]:
    server = FakeApiServer()
    server.put(LEASES, LEASE)
    async with server.running(), Connection(server.access(), attempts=Attempts(2, QUICK)) as connection:
        yield Scene(server, connection)


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
async def test_the_lease_is_renewed_while_the_cluster_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of a large cluster may take longer than the Lease lasts."""
    monkeypatch.setattr(leader_election, "RENEW_EVERY_S", 0.001)

    async with on_stage() as scene:

        async def list_for_long() -> None:
            for _ in range(3):
                scene.time += LEASE_S - MARGIN_S - 1
                written = scene.server.count("patch")
                # The second one was sent after the clock had moved.
                await until(lambda: scene.server.count("patch") >= written + 2, 60)  # noqa: B023 - awaited here
                assert scene.lease.valid()

        scene.catch_up = list_for_long
        await scene.election.lead()
        assert scene.election.leads()


@pytest.mark.anyio
async def test_a_replica_stands_by_and_leads_when_the_lease_is_free(caplog: pytest.LogCaptureFixture) -> None:
    async with on_stage() as scene:
        held = {"holderIdentity": "b", "leaseDurationSeconds": LEASE_S, "leaseTransitions": 1}
        scene.server.put(LEASES, {**LEASE, "spec": held})
        with pytest.raises(NotReady, match="b is the active one"):
            await scene.election.lead()
        running = asyncio.create_task(scene.election.run(0.001))
        await asyncio.sleep(0.01)
        assert not scene.election.leads()
        scene.time += LEASE_S
        await until(scene.election.leads, 60)
        scene.server.put(LEASES, {**LEASE, "spec": held})
        await until(lambda: "leads no more" in caplog.text, 60)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert caplog.text.count("leads no more") == 1, "a standby says nothing"


@pytest.mark.anyio
async def test_while_the_lease_is_new_a_replica_says_that_nobody_leads_yet() -> None:
    """People read it in the Event of a pod that comes right after the installation."""
    async with on_stage() as scene:
        del scene.server.store[LEASES]["controller"]
        with pytest.raises(NotReady, match=r"^no replica is active yet: the Lease is new$"):
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
@pytest.mark.parametrize("release", [True, False])
async def test_a_replica_that_has_stopped_does_not_take_the_lease(release: bool) -> None:
    async with on_stage() as scene:
        resigning = asyncio.create_task(scene.election.resign(release=release))
        leading = asyncio.create_task(scene.election.lead())
        await resigning
        with pytest.raises(NotReady):
            await leading
        assert not scene.election.leads()
        assert scene.holder == ""


@pytest.mark.anyio
async def test_a_replica_that_stops_while_it_renews_gives_the_lease_back() -> None:
    """Whoever waits for the answer is ended, and another version of the Lease is stored than the replica knows."""
    async with on_stage() as scene:
        await scene.election.lead()
        scene.server.fault("patch", "lose")
        await scene.election.renew(wanted=True)
        await scene.election.resign(release=True)
        assert scene.holder == ""


@pytest.mark.anyio
async def test_the_only_replica_that_stops_while_it_lists_does_not_act() -> None:
    listing, over = asyncio.Event(), asyncio.Event()

    async def list_for_long(_: bool) -> None:
        listing.set()
        await over.wait()

    election = SoleReplica(list_for_long)
    leading = asyncio.create_task(election.lead())
    await listing.wait()
    await election.resign(release=True)
    over.set()
    with pytest.raises(NotReady):
        await leading
    assert not election.leads()


@pytest.mark.anyio
async def test_a_leader_leaves_a_note_and_the_next_one_finds_it_when_it_catches_up() -> None:
    async with on_stage() as scene:
        found: list[str] = []

        async def catch_up() -> None:
            await scene.election.renew(wanted=True)  # as while the cluster is listed
            found.append(scene.lease.note)

        scene.catch_up, scene.note = catch_up, "of the first leader"
        await scene.election.lead()
        assert found == [""]
        await scene.election.lead()
        assert scene.noted == "of the first leader"
        scene.note = "its last word"
        await scene.election.resign(release=True)
        scene.restart()
        scene.note = "of the second leader"
        await scene.election.lead()
        assert found == ["", "its last word"]
        assert scene.noted == "its last word"
        await scene.election.lead()
        assert scene.noted == "of the second leader"
