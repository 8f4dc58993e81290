"""One replica decides at a time, and only after it has seen all that was decided before (B1)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gputile.extender.activity import Activity
from gputile.extender.readiness import NotReady
from gputile.kube.connection import Connection
from gputile.kube.lease import LeaseHolder
from gputile.kube.tenancy import Tenancy
from tests.fakes.apiserver import FakeApiServer
from tests.unit.kube.views import QUICK

LEASE_S, MARGIN_S = 15, 5


class Replica:
    """An activity on a real lease holder, which counts how often it listed the cluster anew."""

    def __init__(self, scene: "Scene", name: str) -> None:
        self.listed = 0
        tenancy = Tenancy(name, LEASE_S, MARGIN_S)
        lease = LeaseHolder(scene.connection, "ns", "extender", tenancy, within=10.0, monotonic=lambda: scene.time)
        self.activity = Activity(lease, self._refresh, lambda: scene.time)

    async def _refresh(self) -> None:
        self.listed += 1
        await asyncio.sleep(0)

    async def admitted(self) -> bool:
        try:
            await self.activity.admit()
        except NotReady:
            return False
        return self.activity.active()


class Scene:
    """Replicas on one API server, with a clock that only moves when told."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.time = 0.0


def on_stage(work: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        server = FakeApiServer()
        async with server.running(), Connection(server.access(), retry=QUICK, attempts=2) as connection:
            await work(Scene(connection))

    asyncio.run(main())


def test_the_first_to_be_asked_acts_and_the_other_does_not() -> None:
    async def work(scene: Scene) -> None:
        first, second = Replica(scene, "first"), Replica(scene, "second")
        assert not first.activity.active()
        assert await first.admitted()
        assert first.listed == 1
        assert not await second.admitted()
        with pytest.raises(NotReady, match="first is the active one"):
            await second.activity.admit()
        assert second.listed == 0

    on_stage(work)


def test_who_takes_over_lists_first_and_the_old_one_stops_before() -> None:
    async def work(scene: Scene) -> None:
        first, second = Replica(scene, "first"), Replica(scene, "second")
        assert await first.admitted()
        assert not await second.admitted()  # sees the lease for the first time
        scene.time += LEASE_S - MARGIN_S
        assert not first.activity.active(), "the holder stops before anybody may take over"
        assert not await second.admitted()
        scene.time += MARGIN_S
        assert await second.admitted()
        assert second.listed == 1
        assert not await first.admitted()

    on_stage(work)


def test_a_lease_that_only_lapsed_needs_no_new_list() -> None:
    async def work(scene: Scene) -> None:
        only = Replica(scene, "only")
        assert await only.admitted()
        scene.time += 10 * LEASE_S
        assert not only.activity.active()
        assert await only.admitted()
        assert only.listed == 1, "nobody else can have decided anything"

    on_stage(work)


def test_a_list_that_was_begun_before_another_decided_is_not_enough() -> None:
    async def work(scene: Scene) -> None:
        first, second = Replica(scene, "first"), Replica(scene, "second")

        async def slow_list() -> None:
            """Another one takes over and decides meanwhile, and gives the Lease back."""
            first.activity._refresh = first._refresh
            assert not await second.admitted()
            scene.time += LEASE_S + MARGIN_S
            assert await second.admitted()
            await second.activity.release()

        first.activity._refresh = slow_list
        assert not await first.admitted()
        assert await first.admitted()
        assert first.listed == 1, "and that one was begun after the other's last decision"

    on_stage(work)


def test_who_gets_it_back_lists_what_the_other_did() -> None:
    async def work(scene: Scene) -> None:
        first, second = Replica(scene, "first"), Replica(scene, "second")
        assert await first.admitted()
        await first.activity.release()
        assert await second.admitted()
        await second.activity.release()
        assert await first.admitted()
        assert (first.listed, second.listed) == (2, 1)

    on_stage(work)


def test_a_restarted_replica_of_the_same_name_resumes_at_once_and_lists() -> None:
    async def work(scene: Scene) -> None:
        assert await Replica(scene, "pod-0").admitted()
        restarted = Replica(scene, "pod-0")
        assert await restarted.admitted()
        assert restarted.listed == 1

    on_stage(work)


def test_calls_at_the_same_time_take_it_once() -> None:
    async def work(scene: Scene) -> None:
        only = Replica(scene, "only")
        assert await asyncio.gather(*(only.admitted() for _ in range(20))) == [True] * 20
        assert only.listed == 1

    on_stage(work)
