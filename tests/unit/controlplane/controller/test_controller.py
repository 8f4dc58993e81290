"""The controller's parts together: a changed configuration, and PodGroups that may come later."""

import asyncio
from typing import Any

import pytest

from gputile.api.workloads import POD_GROUPS_PATH, PodGroup
from gputile.controlplane.controller.controller import Controller, ControllerSettings, watch_pod_groups
from gputile.kube.client import Attempts, Connection
from gputile.kube.objects import Replaced, WatchEvent
from tests.conftest import HANGS_S
from tests.fakes.apiserver import FakeApiServer, until
from tests.unit.core.devices.test_node_type import configured, described
from tests.unit.kube.views import QUICK

pytestmark = pytest.mark.requirement("B5", "M13", "U9")


@pytest.mark.anyio
async def test_that_there_are_none_is_said_once_and_their_kind_may_come_later() -> None:
    server, events = FakeApiServer(), list[WatchEvent[PodGroup] | None]()
    async with (
        server.running(),
        Connection(server.access(), attempts=Attempts(backoff=QUICK), within=HANGS_S) as connection,
    ):
        watching = asyncio.create_task(watch_pod_groups(connection, events.append, lambda: events.append(None), 0.01))
        await until(lambda: len(server.requests) > 3)
        assert events == [None]
        server.store[POD_GROUPS_PATH] = {}
        await until(lambda: len(events) > 1)
        assert isinstance(events[1], Replaced)
        watching.cancel()
        await asyncio.wait([watching])


@pytest.mark.anyio
async def test_a_node_that_joins_has_node_requests_planned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its placeholder is to be gone before an autoscaler looks for another node; one that changes is no reason."""
    server, woken = FakeApiServer(), list[bool]()
    server.store.update({"/api/v1/nodes": {}, "/api/v1/pods": {}})
    node: dict[str, Any] = {"metadata": {"name": "n", "uid": "n"}}
    server.put("/api/v1/nodes", node)
    settings = ControllerSettings("default", "controller", "me")
    async with server.running(), Connection(server.access(), attempts=Attempts(backoff=QUICK)) as connection:
        controller = Controller(connection, configured(described()), settings)
        async with controller.running():
            await until(lambda: controller.not_ready() is None)
            monkeypatch.setattr(controller.rounds, "wake", lambda *, for_requests=False: woken.append(for_requests))
            server.put("/api/v1/nodes", {"metadata": {**node["metadata"], "labels": {"a": "b"}}})
            await until(lambda: "a" in controller.cluster_state.nodes["n"].metadata.labels)
            assert True not in woken
            server.put("/api/v1/nodes", {"metadata": {"name": "m", "uid": "m"}})
            await until(lambda: True in woken)
