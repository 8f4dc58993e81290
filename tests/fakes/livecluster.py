"""A live cluster for the commands that read one: an API server over a real socket, and a kubeconfig for it."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from gputile.api.core import Node, OwnerReference, Pod
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.corebuilders import bound, gpu_node

GIB = 1024

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


def put(server: FakeApiServer, *objects: Node | Pod) -> None:
    """Store nodes and pods in the cluster."""
    for each in objects:
        kind = "nodes" if isinstance(each, Node) else "pods"
        server.store[f"/api/v1/{kind}"][each.metadata.name] = msgspec.to_builtins(each)


def machine(name: str = "n", mode: str = "share") -> Node:
    """Return a node with one GPU of 15 GiB."""
    allocatable = {"aliyun.com/gpu-mem": "15", "pods": "110"}
    return gpu_node(name, mode=mode, sizes=[15 * GIB], unit_mib=GIB, allocatable=allocatable)


def held(name: str, gpu: int, gib: int, namespace: str = "default") -> Pod:
    """Return a pod of a Deployment's ReplicaSet that has memory of a GPU of node n."""
    found = bound(name, "n", gpu, gib, namespace)
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web-5d4f", uid="u", controller=True)
    labels = {"pod-template-hash": "5d4f"}
    meta = msgspec.structs.replace(found.metadata, owner_references=(owner,), labels=labels)
    return msgspec.structs.replace(found, metadata=meta)
