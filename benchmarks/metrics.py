"""What a scrape of the agent costs: 200 pods on 8 GPUs, each with a process, isolated ones and ones that share.

The agent's own process answers on a thread of its own; here nothing else runs in it.
"""

import gzip
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from prometheus_client import CollectorRegistry
from tests.fakes.fullnode import PODS, full_registry
from tests.localcluster.ports import free_ports

from benchmarks.report import Result
from gputile.api.usage_hour import PodHour
from gputile.api.well_known import Mode
from gputile.node.agent.status.monitoring import monitoring_app, start_monitoring

NAME = "metrics"
SCRAPES = 50


def run() -> Iterator[Result]:
    """Measure milliseconds and kilobytes."""
    for mode in (Mode.CGPU, Mode.SHARE):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, ExitStack() as open_files:
            yield from _scraped(mode, full_registry(mode, Path(directory), open_files))


def _scraped(mode: Mode, registry: CollectorRegistry) -> Iterator[Result]:
    (port,) = free_ports(1)
    server = start_monitoring(port, monitoring_app(registry, str, str, lambda _: PodHour()))
    seconds, body = [], b""
    before = time.process_time()
    for _ in range(SCRAPES):
        began = time.perf_counter()
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(asked) as answer:  # as Prometheus asks
            body = answer.read()
        seconds.append(time.perf_counter() - began)
    cpu = time.process_time() - before
    server.shutdown()
    server.server_close()
    yield Result(NAME, f"{PODS} pods, {mode.value}: a scrape, median", statistics.median(seconds) * 1000, "ms", 50.0)
    yield Result(NAME, f"{PODS} pods, {mode.value}: CPU of a scrape", cpu / SCRAPES * 1000, "ms")
    yield Result(NAME, f"{PODS} pods, {mode.value}: a scrape, as it is sent", len(body) / 1000, "kB")
    yield Result(NAME, f"{PODS} pods, {mode.value}: a scrape, unpacked", len(gzip.decompress(body)) / 1000, "kB", 200.0)
