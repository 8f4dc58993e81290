"""The controller's parts together: a changed configuration, and PodGroups that may come later."""

import asyncio
from typing import Any

import pytest

from gputile.api.workloads import POD_GROUPS_PATH, PodGroup
from gputile.controlplane.controller.controller import Controller, ControllerSettings
from gputile.kube.objects import Replaced, WatchEvent
from gputile.kube.reflector import Reflector, ReflectorSettings
from tests.fakes.apiserver import FakeApiServer, until
from tests.unit.core.devices.test_node_type import configured, described

pytestmark = pytest.mark.requirement("B5", "M13", "U9")


@pytest.mark.anyio
async def test_a_kind_that_is_not_installed_counts_as_empty_and_may_come_later() -> None:
    server, events = FakeApiServer(), list[WatchEvent[PodGroup]]()
    async with server.connected() as connection:
        often = ReflectorSettings(absent_seconds=0.01)
        watching = asyncio.create_task(
            Reflector(connection, POD_GROUPS_PATH, PodGroup, events.append, settings=often).run()
        )
        await until(lambda: len(server.requests) > 3)
        assert events[0] == Replaced([])
        server.store[POD_GROUPS_PATH] = {}
        server.put(POD_GROUPS_PATH, {"metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 2}})
        await until(lambda: events[-1] != Replaced([]))
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
    async with server.connected() as connection:
        controller = Controller(connection, configured(described()), settings)
        async with controller.running():
            await until(lambda: controller.not_ready() is None)
            monkeypatch.setattr(controller.rounds, "wake", lambda *, for_requests=False: woken.append(for_requests))
            server.put("/api/v1/nodes", {"metadata": {**node["metadata"], "labels": {"a": "b"}}})
            await until(lambda: "a" in controller.cluster_state.nodes["n"].metadata.labels)
            assert True not in woken
            server.put("/api/v1/nodes", {"metadata": {"name": "m", "uid": "m"}})
            await until(lambda: True in woken)
