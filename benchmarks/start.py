"""Measures the extender's start with 5,000 nodes and 50,000 pods, and its memory.

The API server is a plain HTTP server that serves pages of prepared objects, so that only the
extender's own work is measured. The start is compared with the time in which a client reads the
same lists and discards them.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from aiohttp import web
from tests.localcluster.machine import free_ports
from tests.localcluster.processes import cpu_seconds

from benchmarks.clusters import bound_pods, filled, gpu_node
from benchmarks.report import Result, resident_mib
from gputile.core.ledger.ledger import Ledger

NAME = "start"
NODES, PODS = 5_000, 50_000


def run() -> Iterator[Result]:
    """Measure the seconds until the extender is ready, and its resident memory in MiB."""
    engine, _ = filled(NODES, PODS)
    found = asyncio.run(start(node_items(NODES), pod_items(engine.ledger)))
    yield Result(
        NAME,
        "start to ready",
        found.ready,
        "s",
        15.0,
        found.ready / found.reading,
        "reading the lists alone",
    )
    yield Result(NAME, f"memory, {NODES} nodes, {PODS} pods", found.resident, "MiB", 400.0)


@dataclass(frozen=True, slots=True)
class Start:
    """A start of an extender.

    ``ready`` and ``cpu`` are wall-clock and CPU seconds until the extender is ready, and
    ``resident`` is its memory in MiB. ``reading`` are the seconds in which a client reads the same
    lists and discards them.
    """

    ready: float
    cpu: float
    resident: float
    reading: float


async def start(nodes: list[bytes], pods: list[bytes]) -> Start:
    """Start an extender on a cluster of these objects, measure it, and stop it."""
    port, own = free_ports(2)
    # Watches never end by themselves. The short timeout ends them.
    runner = web.AppRunner(_api_server(nodes, pods), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    reading = await _read_all(port, len(nodes), len(pods))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(kubeconfig(port), file)
        file.flush()
        command = [
            str(Path(sys.executable).with_name("gputile")),
            "extender",
            f"--port={own}",
            "--lease-seconds=0",
        ]
        started = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *command, "--no-events", f"--kubeconfig={file.name}", stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await _until_ready(own)
            ready, cpu = time.perf_counter() - started, cpu_seconds([process.pid])
            await asyncio.sleep(1.0)
            resident = resident_mib(process.pid)
        finally:
            process.terminate()
            await process.wait()
    await runner.cleanup()
    return Start(ready, cpu, resident, reading)


def node_items(count: int) -> list[bytes]:
    """Return nodes as JSON, as the API server serves them."""
    return [msgspec.json.encode(_with_noise(gpu_node(number))) for number in range(count)]


def pod_items(ledger: Ledger) -> list[bytes]:
    """Return the pods of the ledger's bookings as JSON of about 3 kB each, like an API server."""
    return [msgspec.json.encode(_with_noise(pod)) for pod in bound_pods(ledger)]


def _with_noise(found: Any) -> Any:
    """Add fields that the API server serves but gputile does not read."""
    body = msgspec.to_builtins(found)
    body["metadata"]["managedFields"] = [
        {"manager": "kubelet", "fieldsV1": {f"f:field-{i}": {} for i in range(80)}}
    ]
    body["metadata"]["resourceVersion"] = "1"
    return body


def _api_server(nodes: list[bytes], pods: list[bytes]) -> web.Application:
    async def listing(request: web.Request) -> web.StreamResponse:
        items = nodes if request.path.endswith("/nodes") else pods
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(3600)
            return response
        first, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        after = str(first + limit) if first + limit < len(items) else ""
        head = b'{"metadata":{"resourceVersion":"1","continue":"%s"},"items":[' % after.encode()
        return web.Response(
            body=head + b",".join(items[first : first + limit]) + b"]}",
            content_type="application/json",
        )

    app = web.Application()
    app.router.add_get("/api/v1/nodes", listing)
    app.router.add_get("/api/v1/pods", listing)
    return app


async def _read_all(port: int, nodes: int, pods: int) -> float:
    """Return the seconds that a client needs to read all pages of both lists."""
    started = time.perf_counter()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        for path, count in (("nodes", nodes), ("pods", pods)):
            for first in range(0, count, 500):
                async with session.get(f"/api/v1/{path}?limit=500&continue={first}") as response:
                    await response.read()
    return time.perf_counter() - started


async def _until_ready(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.02)


def kubeconfig(port: int) -> dict[str, Any]:
    """Return a kubeconfig for an API server on this machine."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "none"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
