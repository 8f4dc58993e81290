"""A page that serves in a cluster, over TLS, for viewers who log in."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2 as httpx

from gputile.api.core import Node, Pod
from gputile.kube.client import Connection
from gputile.tools.web.questions import ClusterSnapshot
from gputile.tools.web.server import LoginSettings, WebSettings, serve
from tests.fakes.agents import PODS as AGENTS
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.corebuilders import bound, pod
from tests.fakes.reviews import Users
from tests.localcluster.identities import Authority, KeyPair
from tests.localcluster.machine import free_ports
from tests.unit.tools.web.pages import CONFIGURATION, NODES, PODS, machine, put

HANG_S = 60.0


def put_certificate(pair: KeyPair, directory: Path) -> None:
    """Write a certificate and its key as a Secret of the type kubernetes.io/tls is mounted."""
    directory.mkdir(exist_ok=True)
    shutil.copy(pair.certificate, directory / "tls.crt")
    shutil.copy(pair.key, directory / "tls.key")


class ClusterPage:
    """A page that serves in a cluster: what is behind it, and clients for it."""

    def __init__(self, cluster: FakeApiServer, base: str, health: str, trusted: ssl.SSLContext) -> None:
        self.cluster = cluster
        self.users = Users(cluster)
        self.base = base
        self.health = health
        self._trusted = trusted
        self.users.rights = {
            "admin": {("nodes", ""), ("pods", ""), ("events", "")},
            "team": {("nodes", ""), ("pods", "mine")},
        }

    @asynccontextmanager
    async def client(self, user: str = "") -> AsyncIterator[httpx.AsyncClient]:
        """Yield a browser, in which a user has logged in where one is named."""
        origin = {"Origin": self.base}
        async with httpx.AsyncClient(
            trust_env=False, base_url=self.base, verify=self._trusted, timeout=60, headers=origin
        ) as found:
            if user:
                answer = await found.post("/login", data={"token": f"token-{user}"})
                assert (answer.status_code, answer.headers["location"]) == (303, "/")
            yield found


@asynccontextmanager
async def served_in_cluster(directory: Path) -> AsyncIterator[ClusterPage]:
    """Serve the page of a node with a pod that ``team`` may list, one that it may not, and two that wait."""
    authority = Authority(directory)
    put_certificate(authority.server("page", ["localhost"]), directory / "tls")
    cluster = FakeApiServer()
    cluster.store.update({NODES: {}, PODS: {}, AGENTS: {}})
    objects: list[Node | Pod] = [
        machine("a"),
        bound("open", "a", 0, 4, "mine"),
        bound("secret", "a", 1, 6, "theirs"),
        pod("open-waits", namespace="mine", mem=99),
        pod("secret-waits", namespace="theirs", mem=99),
    ]
    put(cluster, *objects)

    async def complete(_: Connection, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        return snapshot

    async with cluster.running():
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        (health,) = free_ports(1)
        login = LoginSettings(directory / "tls", health)
        settings = WebSettings(0, address.set_result, complete, "gputile", login)
        serving = asyncio.create_task(serve(cluster.access(), CONFIGURATION, [], [], settings))
        base = f"https://localhost:{urlsplit(await address).port}"
        trusted = ssl.create_default_context(cafile=authority.certificate)
        found = ClusterPage(cluster, base, f"http://localhost:{health}", trusted)
        async with found.client("admin") as admin, asyncio.timeout(HANG_S):
            while True:
                state = (await admin.get("/api/state")).json()
                if state["nodes"] and len(state["pending"]) == 2:
                    break
                await asyncio.sleep(0.02)
        try:
            yield found
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
