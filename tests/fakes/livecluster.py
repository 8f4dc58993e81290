"""A live cluster for the commands that read one: an API server over a real socket, and a kubeconfig for it."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.fakes.apiserver import FakeApiServer

PATHS = (
    "/apis/apps/v1/namespaces/gputile/deployments",
    "/apis/apps/v1/namespaces/gputile/daemonsets",
    "/api/v1/namespaces/gputile/pods",
    "/api/v1/namespaces/gputile/events",
    "/api/v1/namespaces/gputile/configmaps",
    "/api/v1/nodes",
    "/api/v1/pods",
)


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    """An API server in a thread of its own: the command runs its own event loop."""
    fake, started, ending = FakeApiServer(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with fake.running():
            started.set()
            await ending.wait()

    def work() -> None:
        loop.run_until_complete(serve())
        loop.close()

    for path in PATHS:
        fake.store[path] = {}
    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    yield fake
    loop.call_soon_threadsafe(ending.set)
    thread.join()


@pytest.fixture
def kubeconfig(server: FakeApiServer, tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "current-context": "c",
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    """A kubeconfig for a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        path = tmp_path / "kubeconfig"
        document = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.getsockname()[1]}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "team"}}],
            "current-context": "c",
        }
        path.write_text(yaml.safe_dump(document))
        yield str(path)
