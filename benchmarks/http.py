"""Measures the extender over HTTP and JSON, with 500 candidate nodes in a cluster of 5,000 nodes.

Client and server run in this process, so one core does the work of both. Requests to /healthz
measure the time that the client needs, and this time is the baseline.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from typing import cast

import aiohttp
import msgspec

from benchmarks.clusters import filled, gpu_pod, node_name
from benchmarks.report import Result
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.controlplane.extender.app import create_app
from gputile.controlplane.extender.binder import Binder, PodApi
from gputile.controlplane.extender.handlers import ExtenderHandlers
from gputile.controlplane.extender.metrics import ExtenderMetrics
from gputile.support.http_server import Server, bound_ports

NAME = "http"
NODES, PODS, NAMES, REQUESTS = 5_000, 50_000, 500, 1_000


def run() -> Iterator[Result]:
    """Measure wall-clock milliseconds of filter and of prioritize."""
    yield from asyncio.run(_measure())


async def _measure() -> list[Result]:
    engine, _ = filled(NODES, PODS)
    cluster = cast(PodApi, None)  # not used, because no pod is bound
    verbs = ExtenderHandlers(
        engine,
        Binder(engine, cluster, time.monotonic, time.time_ns),
        lambda _: None,
        lambda: None,
        evictable=EvictablePods(lambda _: False),
    )
    app = create_app(verbs, ExtenderMetrics(), _admit, lambda: "")
    server = Server(app, "--port", "127.0.0.1", 0)
    with bound_ports(server):
        server.listen()
        task = asyncio.create_task(server.answer())
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            plain = await _times(session, "healthz", None)
            found = {
                verb: await _times(session, verb, _bodies()) for verb in ("filter", "prioritize")
            }
        server.stop()
        await task
    results = []
    for verb, times in found.items():
        for what, fraction, target in (("median", 0.5, None), ("p99", 0.99, 5.0)):
            value = times[int(fraction * len(times))] * 1e3
            against = plain[int(fraction * len(plain))] * 1e3
            results.append(
                Result(
                    NAME,
                    f"{verb}, {NAMES} names, {what}",
                    value,
                    "ms",
                    target,
                    value / against,
                    "an empty request",
                )
            )
    return results


async def _admit() -> None:
    return


def _bodies() -> list[bytes]:
    """Return request bodies like those of kube-scheduler.

    A body contains a pod, and consecutive node names from a random start.
    """
    draw = random.Random(7)
    bodies = []
    for number in range(64):
        pod = msgspec.to_builtins(gpu_pod(1_000_000 + number, draw.choice((1, 2, 4))))
        first = draw.randrange(NODES)
        names = [node_name((first + i) % NODES) for i in range(NAMES)]
        bodies.append(msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names}))
    return bodies


async def _times(
    session: aiohttp.ClientSession, path: str, bodies: list[bytes] | None
) -> list[float]:
    times = []
    for number in range(REQUESTS):
        started = time.perf_counter()
        if bodies is None:
            request = session.get(f"/{path}")
        else:
            request = session.post(f"/{path}", data=bodies[number % len(bodies)])
        async with request as response:
            await response.read()
        times.append(time.perf_counter() - started)
    return sorted(times[REQUESTS // 10 :])
