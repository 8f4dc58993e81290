"""Nominations on an API server that refuses, fails, or loses its answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.controlplane.controller.api_server import ApiServerWriter
from gputile.controlplane.controller.nominations.nomination_planner import LASTS_NS, Nominations
from gputile.controlplane.controller.nominations.nominator import Nominator
from gputile.controlplane.controller.update_queue import UpdateQueue
from gputile.core.placement.steps import at_once
from gputile.kube.client import Attempts, Connection
from gputile.kube.events import EventRecorder
from gputile.kube.objects import Applied, Deleted, Replaced
from tests.fakes.apiserver import FakeApiServer
from tests.unit.controlplane.controller.gangs.test_gang_planner import NOW, SECOND
from tests.unit.controlplane.controller.test_nominations import node, waiting
from tests.unit.kube.views import QUICK

pytestmark = pytest.mark.requirement("B3")

PODS = "/api/v1/pods"


class Bench:
    """A nominator on a fake API server; time is set by hand, and the watch tells when ``look`` is called."""

    def __init__(self, server: FakeApiServer, connection: Connection) -> None:
        self.server = server
        self.now_s = float(NOW)
        self.active = True
        self.nominations = Nominations(Configuration())
        writer = ApiServerWriter(connection, EventRecorder(connection, "me"), "gputile")
        self.nominator = Nominator(
            self.nominations, writer, lambda: self.active, lambda: int(self.now_s * SECOND), UpdateQueue()
        )
        at_once(self.nominations.cluster.state.node_event(Replaced([node()])))

    def create(self, *pods: Pod) -> None:
        for each in pods:
            body = msgspec.to_builtins(each)
            body["metadata"].pop("resourceVersion", None)
            self.server.put(PODS, body)

    def look(self) -> None:
        """Take what is stored, as the watch would bring it."""
        for stored in self.server.store[PODS].values():
            at_once(self.nominations.pod_event(Applied(msgspec.convert(stored, Pod))))

    def nominated(self, name: str = "p") -> str:
        status: dict[str, Any] = self.server.store[PODS][name].get("status", {})
        return status.get("nominatedNodeName") or ""

    async def round(self, after_s: float = 0) -> None:
        self.now_s += after_s
        await self.nominator.run_round()

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.nominator.nominated, self.nominator.cleared, self.nominator.failures


@asynccontextmanager
async def bench_of(*pods: Pod) -> AsyncIterator[Bench]:
    server = FakeApiServer()
    async with server.running(), Connection(server.access(), attempts=Attempts(1, QUICK)) as connection:
        bench = Bench(server, connection)
        bench.create(*(pods or (waiting(),)))
        bench.look()
        yield bench


@pytest.mark.anyio
async def test_a_nomination_is_written_once_for_this_version_of_the_pod_and_cleared_again() -> None:
    async with bench_of() as bench:
        before = bench.server.store[PODS]["p"]["metadata"]
        await bench.round()
        assert bench.nominated() == "n"
        request = bench.server.requests[-1]
        assert request.path == "/api/v1/namespaces/default/pods/p/status"
        known = {"uid": before["uid"], "resourceVersion": before["resourceVersion"]}
        assert request.json()["metadata"] | known == request.json()["metadata"]
        assert bench.server.store[PODS]["p"]["metadata"]["annotations"]["gputile.io/nominated-node"] == "n"
        for _ in range(2):
            bench.look()
            await bench.round()
        assert bench.counts == (1, 0, 0)
        await bench.round(LASTS_NS / SECOND)
        assert bench.nominated() == ""
        assert "gputile.io/nominated-node" not in bench.server.store[PODS]["p"]["metadata"]["annotations"]
        bench.look()
        await bench.round(1)
        assert bench.counts == (1, 1, 0)


@pytest.mark.anyio
async def test_a_pod_that_has_changed_is_looked_at_anew() -> None:
    async with bench_of() as bench:
        stored = bench.server.store[PODS]["p"]
        bench.server.put(PODS, {**stored, "metadata": {**stored["metadata"], "labels": {"a": "b"}}})
        await bench.round()
        assert bench.nominated() == ""
        bench.look()
        await bench.round()
        assert bench.nominated() == "n"
        assert bench.counts == (1, 0, 0), "that is no failure"


@pytest.mark.anyio
@pytest.mark.parametrize("status", [404, 409, 422])
async def test_a_hint_that_comes_too_late_is_no_failure(status: int) -> None:
    async with bench_of() as bench:
        bench.server.fault("patch", "answer", status=status)
        await bench.round()
        assert bench.counts == (0, 0, 0)
        stored = bench.server.store[PODS]["p"]
        bench.server.put(PODS, {**stored, "spec": {**stored["spec"], "nodeName": "n"}})
        bench.look()
        await bench.round()
        assert bench.nominations.under_way == 0
        assert bench.server.count("patch") == 1


@pytest.mark.anyio
@pytest.mark.parametrize("status", [403, 413])
async def test_what_is_refused_for_good_is_left_for_a_while(status: int) -> None:
    async with bench_of() as bench:
        bench.server.fault("patch", "answer", status=status)
        await bench.round()
        await bench.round(59)
        assert (bench.counts, bench.server.count("patch")) == ((0, 0, 1), 1)
        await bench.round(1)
        assert bench.nominated() == "n"


@pytest.mark.anyio
async def test_an_api_server_that_sheds_load_is_asked_again() -> None:
    async with bench_of() as bench:
        bench.server.fault("patch", "answer", status=429)
        await bench.round()
        assert (bench.nominated(), bench.counts) == ("", (0, 0, 1))
        await bench.round()
        assert (bench.nominated(), bench.counts) == ("n", (1, 0, 1))


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["lose", "cut"])
async def test_a_write_whose_answer_is_lost_is_found_by_the_watch_and_ends(what: str) -> None:
    async with bench_of() as bench:
        bench.server.fault("patch", what)
        await bench.round()
        assert bench.nominated() == "n"
        bench.look()
        await bench.round(1)
        assert bench.server.count("patch") == 1
        bench.server.fault("patch", what)
        await bench.round(LASTS_NS / SECOND)
        assert bench.nominated() == ""
        bench.look()
        await bench.round(40)
        assert bench.server.count("patch") == 2, "nor is it cleared twice"


@pytest.mark.anyio
@pytest.mark.parametrize(("what", "status"), [("answer", 500), ("reset", 0)])
async def test_a_write_that_perhaps_failed_keeps_its_place_until_it_is_over(what: str, status: int) -> None:
    async with bench_of(waiting(), *(waiting(f"q{i}", version=2 + i) for i in range(4))) as bench:
        bench.server.fault("patch", what, status=status)
        await bench.round()
        bench.look()
        names = ("p", "q0", "q1", "q2", "q3")
        assert sum(bench.nominated(name) == "n" for name in names) == 3
        assert bench.nominations.under_way == 4
        assert bench.nominator.failures == 1


@pytest.mark.anyio
async def test_a_failed_clearing_is_made_up_for() -> None:
    async with bench_of() as bench:
        await bench.round()
        bench.look()
        bench.server.fault("patch", "answer", status=500)
        await bench.round(LASTS_NS / SECOND)
        assert bench.nominated() == "n"
        await bench.round(2)
        assert (bench.nominated(), bench.counts) == ("", (1, 1, 1))


@pytest.mark.anyio
async def test_a_new_pod_of_the_name_is_not_touched() -> None:
    async with bench_of() as bench:
        await bench.round()
        bench.look()
        old = msgspec.convert(bench.server.store[PODS]["p"], Pod)
        bench.server.delete(PODS, "p")
        new = msgspec.structs.replace(waiting(nominated="n"), metadata=msgspec.structs.replace(P.metadata, uid="new"))
        bench.create(new)
        await bench.round(LASTS_NS / SECOND)
        assert bench.nominated() == "n"
        at_once(bench.nominations.pod_event(Deleted(old)))
        bench.look()
        await bench.round(LASTS_NS / SECOND)
        assert bench.nominated() == "n", "it is somebody else's nomination"


P = waiting()


@pytest.mark.anyio
async def test_a_replica_that_does_not_lead_writes_nothing() -> None:
    async with bench_of() as bench:
        bench.active = False
        await bench.round()
        assert bench.server.count("patch") == 0
        bench.active = True
        await bench.round()
        assert bench.nominated() == "n"
