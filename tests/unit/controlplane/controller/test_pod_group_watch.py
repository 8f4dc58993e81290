"""Whether the cluster has PodGroups is said once it is known, whatever the answer is."""

import asyncio

import pytest

from gputile.api.other_groups import POD_GROUPS_PATH, PodGroup
from gputile.controlplane.controller.pod_group_watch import watch_pod_groups
from gputile.kube.client import Attempts, Connection
from gputile.kube.objects import Replaced, WatchEvent
from tests.fakes.apiserver import FakeApiServer, until
from tests.unit.kube.views import QUICK

pytestmark = pytest.mark.requirement("M13")


@pytest.mark.anyio
async def test_that_there_are_none_is_said_once_and_their_kind_may_come_later() -> None:
    server, events = FakeApiServer(), list[WatchEvent[PodGroup] | None]()
    async with (
        server.running(),
        Connection(server.access(), attempts=Attempts(backoff=QUICK), within=10.0) as connection,
    ):
        watching = asyncio.create_task(watch_pod_groups(connection, events.append, lambda: events.append(None), 0.01))
        await until(lambda: len(server.requests) > 3)
        assert events == [None]
        server.store[POD_GROUPS_PATH] = {}
        await until(lambda: len(events) > 1)
        assert isinstance(events[1], Replaced)
        watching.cancel()
        await asyncio.wait([watching])
