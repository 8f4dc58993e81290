"""Measures the speed of the web page in a browser, and the load that viewers cause on its server.

The API server is the fake of the tests. The server of the page is a separate process, and the
browser is a real one.
"""

import asyncio
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import msgspec
import yaml
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.corebuilders import allocation_text, gpu_node, pod, share
from tests.localcluster.browser import browser
from tests.localcluster.processes import cpu_seconds

from benchmarks.report import Result, resident_mib
from gputile.api.core import Node, Pod

NAME = "page"
SIZES, VIEWERS, UPDATES = (100, 1_000, 5_000), (1, 10, 50), 20
GIB = 1024
_NODES, _PODS = "/api/v1/nodes", "/api/v1/pods"
_MARKS = """
JSON.stringify((() => {
  const at = (name) => performance.getEntriesByName(name).map((each) => each.startTime);
  const answers = performance.getEntriesByType("resource")
    .filter((each) => /api.(first|state)/.test(each.name));
  const whole = answers.at(-1);
  const drawn = at("gputile-drawn");
  return {paint: at("first-contentful-paint")[0], drawn: drawn[0],
    whole: drawn.find((each) => each >= whole.responseEnd), bytes: whole.encodedBodySize,
    updates: at("gputile-change").map((change) => drawn.find((each) => each >= change) - change)};
})())
"""
_SCROLL = """
(async () => {
  const scroll = document.getElementById("scroll"), times = [];
  for (let step = 0; step < 60; step += 1) {
    const begin = performance.now();
    scroll.scrollTop += scroll.clientHeight / 4;
    await new Promise((drawn) => requestAnimationFrame(drawn));
    times.push(performance.now() - begin);
  }
  return times.sort((a, b) => a - b)[30];
})()
"""


@dataclass(frozen=True)
class _Page:
    """A running server of the page, with its API server, its process and its address."""

    cluster: FakeApiServer
    pid: int
    address: str


def run() -> Iterator[Result]:
    """Measure the browser at each size, and the cost of viewers at the middle size."""
    for sizes, unit, found in (
        (SIZES, "nodes", [each for nodes in SIZES for each in asyncio.run(_in_browser(nodes))]),
        (VIEWERS, "viewer", asyncio.run(_viewers(SIZES[1]))),
    ):
        smallest = found[: len(found) // len(sizes)]
        for each, least in zip(found, itertools.cycle(smallest)):
            yield replace(each, ratio=each.value / least.value, against=f"with {sizes[0]} {unit}")


def objects(nodes: int) -> Iterator[Node | Pod]:
    """Yield nodes of eight GPUs, and three pods on each GPU."""
    for number in range(nodes):
        name = f"node-{number:05}"
        yield gpu_node(name, mode="cgpu", sizes=[80 * GIB] * 8, unit_mib=GIB)
        for gpu, part in itertools.product(range(8), range(3)):
            yield _pod(f"w-{number}-{gpu}-{part}", name, gpu, f"team-{number % 30}")


def _pod(name: str, node: str, gpu: int, namespace: str) -> Pod:
    held = {"gputile.io/allocation": allocation_text(share(f"GPU-{node}-{gpu}", 8 * GIB))}
    return pod(name, namespace=namespace, node=node, mem=8, annotations=held)


@asynccontextmanager
async def _served(nodes: int) -> AsyncIterator[_Page]:
    cluster = FakeApiServer()
    cluster.store.update({_NODES: {}, _PODS: {}})
    for each in objects(nodes):
        cluster.put(_NODES if isinstance(each, Node) else _PODS, msgspec.to_builtins(each))
    cluster.compact()
    async with cluster.running():
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            here = [{"name": "here", "context": {"cluster": "here"}}]
            clusters = [{"name": "here", "cluster": {"server": cluster.url}}]
            yaml.safe_dump(
                {"clusters": clusters, "contexts": here, "current-context": "here"}, file
            )
            file.flush()
            command = [
                str(Path(sys.executable).with_name("gputile")),
                "web",
                "--port=0",
                "--request-timeout=0",
            ]
            process = await asyncio.create_subprocess_exec(
                *command,
                f"--kubeconfig={file.name}",
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                assert process.stdout is not None
                address = (await process.stdout.readline()).decode().strip()
                while cluster.count("watch") < 2:  # The server starts both watches after the lists.
                    await asyncio.sleep(0.1)
                await asyncio.sleep(2)
                yield _Page(cluster, process.pid, address)
            finally:
                process.kill()
                await process.wait()


async def _in_browser(nodes: int) -> list[Result]:
    async with _served(nodes) as page, browser() as tab:
        await tab.size(1360, 860)
        await tab.open(page.address)
        await tab.until("document.documentElement.dataset.drawn")
        for number in range(UPDATES):
            page.cluster.put(
                _PODS, msgspec.to_builtins(_pod(f"new-{number}", "node-00000", 0, "team-0"))
            )
            await asyncio.sleep(0.3)
        marks = json.loads(await tab.run(_MARKS))
        scroll = await tab.run(_SCROLL)
        protocol = await tab.page.context.new_cdp_session(tab.page)
        await protocol.send("HeapProfiler.collectGarbage")
        await protocol.send("Performance.enable")
        metrics = {
            each["name"]: each["value"]
            for each in (await protocol.send("Performance.getMetrics"))["metrics"]
        }

    def result(what: str, value: float, unit: str, target: float | None = None) -> Result:
        return Result(NAME, f"{nodes} nodes: {what}", value, unit, target)

    return [
        result("first paint after the address is opened", marks["paint"], "ms", 1000),
        result("tiles drawn after the address is opened", marks["drawn"], "ms", 1000),
        result("all nodes there after the address is opened", marks["whole"], "ms"),
        result(
            "a change is drawn after it is there, median",
            statistics.median(marks["updates"]),
            "ms",
            100,
        ),
        result("a quarter of a screen is scrolled, median", scroll, "ms"),
        result("memory of the page's JavaScript", metrics["JSHeapUsedSize"] / 1e6, "MB"),
        result("the state", marks["bytes"] / 1e6, "MB"),
    ]


async def _viewers(nodes: int) -> list[Result]:
    found = []
    async with (
        _served(nodes) as page,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client,
    ):
        base = page.address.partition("/?")[0]
        await (await client.get(page.address)).read()
        for viewers in VIEWERS:
            state = await (await client.get(f"{base}/api/state")).json()
            target = f"{base}/api/changes?epoch={state['epoch']}&after={state['revision']}"
            received = [0] * viewers
            reading = [
                asyncio.create_task(_read(client, target, received, number))
                for number in range(viewers)
            ]
            await asyncio.sleep(1)
            cpu, data = cpu_seconds([page.pid]), sum(received)
            for number in range(UPDATES):
                page.cluster.put(
                    _PODS,
                    msgspec.to_builtins(_pod(f"v-{viewers}-{number}", "node-00001", 1, "team-1")),
                )
                await asyncio.sleep(0.3)
            cpu, data = cpu_seconds([page.pid]) - cpu, sum(received) - data
            name = f"{nodes} nodes, {viewers} viewer{'' if viewers == 1 else 's'}"
            found += [
                Result(NAME, f"{name}: CPU of the server for a change", cpu / UPDATES * 1e3, "ms"),
                Result(NAME, f"{name}: memory of the server", resident_mib(page.pid), "MiB"),
                Result(
                    NAME, f"{name}: a change for each viewer", data / UPDATES / viewers / 1e3, "kB"
                ),
            ]
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    return found


async def _read(
    client: aiohttp.ClientSession, target: str, received: list[int], number: int
) -> None:
    async with client.get(target, timeout=aiohttp.ClientTimeout(total=None)) as stream:
        async for chunk in stream.content.iter_any():
            received[number] += len(chunk)
