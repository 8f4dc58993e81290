"""The extender as it runs, on an API server over a socket: lists, Bindings, and what one leaves to the next."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration, Features
from gputile.api.well_known import EXTENDER_LEASE, GPU_MEMORY
from gputile.controlplane.config_reload import ConfigReloader
from gputile.controlplane.extender.server import Extender, ExtenderSettings
from gputile.kube.client import Connection
from tests.conftest import HANGS_S
from tests.fakes.apiserver import FakeApiServer, Object
from tests.fakes.claimbuilders import claim, result
from tests.fakes.http import client_of
from tests.unit.controlplane.extender.builders import gpu_node

pytestmark = pytest.mark.requirement("B1")

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gputile/leases"


def pod_body(name: str, units: int) -> Object:
    limits = {GPU_MEMORY: str(units)}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }


class Scene:
    """One node with a GPU of 15 GiB, pods that ask for all of it, and extenders that follow one another."""

    client: httpx.AsyncClient

    def __init__(self, server: FakeApiServer, connection: Connection, lease_seconds: float) -> None:
        self.server = server
        settings = ExtenderSettings(identity="e", lease_namespace="gputile", lease_seconds=lease_seconds, events=False)
        self.reloader = ConfigReloader(lambda each: Extender(connection, each, settings), Configuration())

    async def ask(self, verb: str, **body: Any) -> Any:
        answer = await self.client.post(f"/{verb}", content=json.dumps(body).encode())
        return answer.json() if answer.status_code == 200 else {"Error": answer.text}

    async def fits(self, name: str) -> Any:
        """Ask where a pod fits, as kube-scheduler does, until the extender is ready."""
        while True:
            found = await self.ask("filter", Pod=self.server.store[PODS][name], NodeNames=["n"])
            if not found["Error"]:
                return found
            await asyncio.sleep(0.01)

    async def bind(self, name: str) -> str:
        """Ask for a pod, and bind it where it fits; return what went wrong, "" if nothing."""
        found = await self.fits(name)
        if not found["NodeNames"]:
            return str(found["FailedNodes"] | found["FailedAndUnresolvableNodes"])
        sent = await self.ask("bind", PodName=name, PodNamespace="default", PodUID=f"uid-{name}", Node="n")
        return str(sent["Error"])

    def bound(self) -> set[str]:
        return {name for name, pod in self.server.store[PODS].items() if pod["spec"].get("nodeName")}


@asynccontextmanager
async def on_stage(lease_seconds: float = 0) -> AsyncIterator[Scene]:
    server = FakeApiServer()
    server.put(NODES, json.loads(msgspec.json.encode(gpu_node("n", gpus=1))))
    for name in ("p", "q"):
        server.put(PODS, pod_body(name, 15))
    server.store[BUDGETS] = {}
    server.put(LEASES, {"metadata": {"name": EXTENDER_LEASE}, "spec": {"leaseDurationSeconds": 1}})
    async with server.connected() as connection:
        scene = Scene(server, connection, lease_seconds)
        running = asyncio.create_task(scene.reloader.run())
        async with asyncio.timeout(HANGS_S), client_of(scene.reloader) as scene.client:
            yield scene
        scene.reloader.stop()
        await running


@pytest.mark.anyio
@pytest.mark.parametrize("lease_seconds", [0, 15])
async def test_a_pod_is_bound_and_the_next_one_refused(lease_seconds: float) -> None:
    async with on_stage(lease_seconds) as scene:
        assert await scene.bind("p") == ""
        assert "free" in await scene.bind("q")
        assert scene.bound() == {"p"}
        metrics = (await scene.client.get("/metrics")).text
        assert "gputile_extender_event_loop_lag_seconds_bucket" in metrics
        assert "gputile_ledger_bookings 1.0" in metrics
        for resource in ("pods", "nodes", "poddisruptionbudgets"):
            assert f'gputile_extender_reflector_lists_total{{resource="{resource}"}} ' in metrics


@pytest.mark.anyio
@pytest.mark.requirement("B8")
async def test_claims_are_watched_where_nodes_may_give_gpus_by_them() -> None:
    path = "/apis/resource.k8s.io/v1/resourceclaims"
    async with on_stage() as scene:
        await scene.fits("p")
        assert not [each for each in scene.server.requests if each.path == path]
        held = claim("c", result("n", 0, memory="1Gi"), memory="1Gi")
        scene.server.put(path, json.loads(msgspec.json.encode(held)))
        scene.reloader.configure(Configuration(features=Features(claims=True)))

        async def wait_for_bookings(count: int) -> None:
            while f"gputile_ledger_bookings {count}.0" not in (await scene.client.get("/metrics")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        await wait_for_bookings(1)
        scene.server.put(path, json.loads(msgspec.json.encode(claim("c", memory="1Gi"))))
        await wait_for_bookings(0)
