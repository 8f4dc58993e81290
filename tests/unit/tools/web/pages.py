"""A page of a cluster that a test makes, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import httpx2 as httpx
import msgspec

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, Pod
from gputile.kube.client import Connection
from gputile.tools.web.questions import ClusterSnapshot
from gputile.tools.web.server import WebSettings, serve
from tests.fakes.agents import PODS as AGENTS
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.corebuilders import gpu_node

GIB = 1024
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
CONFIGURATION = Configuration(admission=AdmissionConfiguration(gangs=True))


@dataclass
class ServedPage:
    """A page: the API server behind it, its address with the secret, and a client that has the cookie."""

    cluster: FakeApiServer
    address: str
    client: httpx.AsyncClient

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0


def machine(name: str, gpus: int = 2) -> Node:
    found = gpu_node(name, mode="cgpu", sizes=[15 * GIB] * gpus, unit_mib=GIB)
    return msgspec.structs.replace(
        found, status=msgspec.structs.replace(found.status, allocatable={"aliyun.com/gpu-mem": "30", "pods": "110"})
    )


def put(cluster: FakeApiServer, *objects: Node | Pod) -> None:
    for each in objects:
        cluster.put(NODES if isinstance(each, Node) else PODS, msgspec.to_builtins(each))


@asynccontextmanager
async def served(*objects: Node | Pod, known: bool = True, beside: str = "") -> AsyncIterator[ServedPage]:
    """Serve the page of a cluster with these objects; with ``known`` False the watch has to bring them.

    ``beside`` is a path whose answer each question needs.
    """
    cluster = FakeApiServer()
    cluster.store.update({NODES: {}, PODS: {}, AGENTS: {}})
    put(cluster, *objects)
    nodes = [each for each in objects if isinstance(each, Node)] if known else []
    pods = [each for each in objects if isinstance(each, Pod)] if known else []

    async def complete(connection: Connection, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        if beside:
            await connection.get(beside)
        return replace(snapshot, budgets=[])

    async with cluster.running():
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        settings = WebSettings(0, address.set_result, complete, "gputile")
        serving = asyncio.create_task(serve(cluster.access(), CONFIGURATION, nodes, pods, settings))
        page = await address
        base = page.partition("/?")[0]
        async with httpx.AsyncClient(trust_env=False, base_url=base, headers={"Origin": base}, timeout=60) as client:
            await client.get(page.removeprefix(base))
            try:
                yield ServedPage(cluster, page, client)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
