"""A Lease has one holder, whatever answers are lost and whoever is silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gputile.kube.client import Attempts, Connection
from gputile.kube.errors import AnswerLost, BadAnswer, Forbidden
from gputile.kube.lease import LeaseHolder, LeaseState
from gputile.kube.timing import Clock
from tests.fakes.apiserver import FakeApiServer
from tests.unit.kube.views import QUICK

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
    async with server.running(), Connection(server.access(), attempts=Attempts(2, QUICK)) as connection:
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
async def test_a_silent_holder_loses_its_lease_and_a_restarted_one_resumes_it() -> None:
    async with on_stage() as scene:
        assert await scene.replica("first").acquire()
        scene.time = 1.0
        assert await scene.replica("first").acquire()
        second = scene.replica("second")
        await second.observe()
        scene.time = 15.9
        assert not await second.acquire()
        scene.time = 16.0
        assert await second.acquire()


@pytest.mark.anyio
async def test_a_renewal_whose_answer_is_lost_is_found_again() -> None:
    async with on_stage() as scene:
        first = scene.replica("first")
        assert await first.acquire()
        scene.time = 5.0
        scene.server.fault("patch", "lose")
        with pytest.raises(AnswerLost):
            await first.renew()
        assert scene.end_of(first) == 12.0
        scene.time = 6.0
        assert await first.renew()
        assert scene.end_of(first) == 18.0


@pytest.mark.anyio
async def test_a_release_whose_answer_is_lost_ends_the_claim() -> None:
    async with on_stage() as scene:
        first = scene.replica("first")
        assert await first.acquire()
        scene.server.fault("patch", "lose")
        with pytest.raises(AnswerLost):
            await first.release()
        assert not first.valid()
        assert scene.spec["holderIdentity"] == ""


@pytest.mark.anyio
async def test_a_lease_lost_to_another_is_not_renewed_and_not_released() -> None:
    async with on_stage() as scene:
        first, second = scene.replica("first"), scene.replica("second")
        assert await first.acquire()
        await second.observe()
        scene.time = 20.0
        assert await second.acquire()
        await first.release()
        assert second.valid()
        assert scene.spec["holderIdentity"] == "second"
        assert not await first.renew()
        assert first.holder == "second"


@pytest.mark.anyio
async def test_a_lease_that_is_not_there_is_created_for_nobody_and_taken_when_its_time_is_over() -> None:
    """It may have been deleted: its holder does not know that for as long as what it had lasts."""

    async with on_stage(there=False) as scene:
        first = scene.replica("first")
        assert not await first.acquire()
        assert scene.spec["leaseDurationSeconds"] == 15
        scene.time = 14.9
        assert not await first.acquire()
        assert not await scene.replica("first").acquire(), "nor by one that starts again under the same name"
        scene.time = 15.0
        assert await first.acquire()
        assert not first.vacated


@pytest.mark.anyio
async def test_a_deleted_lease_is_not_renewed_and_its_successor_is_another_term() -> None:
    async with on_stage() as scene:
        first = scene.replica("first")
        assert await first.acquire()
        term = first.term
        scene.server.delete(LEASES, "active")
        scene.time = 1.0
        assert not await first.renew()
        assert not first.valid()
        scene.time = 16.0
        assert await first.acquire()
        assert first.term[0] != term[0]
        assert first.term[1] == term[1]


@pytest.mark.anyio
async def test_two_that_create_at_once_agree_on_one() -> None:
    async with on_stage(there=False) as scene:
        replicas = [scene.replica(f"r{i}") for i in range(4)]
        for _ in range(2):
            held = await asyncio.gather(*(replica.acquire() for replica in replicas))
            assert sum(held) == (scene.time > 0)
            scene.time += 15


@pytest.mark.anyio
async def test_refusals_and_nonsense_are_raised() -> None:
    async with on_stage(there=False) as scene:
        scene.server.fault("post", "answer", status=403)
        with pytest.raises(Forbidden, match='verb "create" on resource "leases"'):
            await scene.replica("first").acquire()
        scene.server.fault("get", "answer", status=200, body=b"[]")
        with pytest.raises(BadAnswer):
            await scene.replica("first").observe()


@pytest.mark.anyio
async def test_what_a_holder_leaves_is_there_for_the_next_one_until_that_leaves_something_else() -> None:
    async with on_stage() as scene:
        first, second = scene.replica("first"), scene.replica("second")
        await first.acquire()
        assert first.note == ""
        first.leave("a")
        await first.renew()
        await second.observe()
        assert second.note == "a"
        first.leave("b")
        await first.release()
        await second.acquire()
        await second.renew()
        assert second.note == "b"
        second.leave("")
        await second.renew()
        assert second.note == ""


@pytest.mark.anyio
async def test_what_a_holder_was_about_to_leave_is_not_written_over_what_others_left_since() -> None:
    """It lost the Lease, and has it again: others have gone on meanwhile."""
    async with on_stage() as scene:
        first, second = scene.replica("first"), scene.replica("second")
        await first.acquire()
        first.leave("old")
        await first.renew()
        scene.time += 20
        await second.observe()
        scene.time += 20
        assert await second.acquire()
        second.leave("new")
        await second.release()
        first.leave("old too")
        assert await first.acquire()
        await first.renew()
        assert first.note == "new"
