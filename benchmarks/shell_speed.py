"""Measures the CPU time of commands that users wait for, compared with an empty Python program.

The benchmark measures complete processes. A plain HTTP server with prepared objects serves as the
API server, so that only the command's own work is measured.
"""

import http.server
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from benchmarks.clusters import filled
from benchmarks.report import Result
from benchmarks.start import kubeconfig, node_items, pod_items

NAME = "shell"
NODES, PODS, RUNS = 100, 1_000, 7
AGAINST = "python -c pass"
ROOT = Path(__file__).resolve().parents[1]
DEMO = ("simulate", "--cluster", "examples/cluster.yaml", "-f", "examples/workloads.yaml")


def run() -> Iterator[Result]:
    """Measure the median CPU time of each command, in seconds."""
    nothing = _seconds([sys.executable, "-c", "pass"])
    program = str(Path(sys.executable).with_name("gputile"))
    with _api_server() as config:
        commands: dict[str, tuple[Sequence[str], float]] = {
            "--version": (["--version"], 0.25),
            "--help": (["--help"], 0.25),
            "simulate, the demo": (DEMO, 1.0),
            f"inspect, {NODES} nodes and {PODS} pods": (["inspect", "--kubeconfig", config], 0.9),
            f"status, {NODES} nodes": (["status", "--kubeconfig", config], 0.9),
        }
        for what, (words, target) in commands.items():
            seconds = _seconds([program, *words])
            yield Result(NAME, what, seconds, "s", target, seconds / nothing, AGAINST)


def _seconds(command: Sequence[str]) -> float:
    # Allow bytecode files, since pip installs byte-compiled modules.
    environment = {
        name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    found = []
    for _ in range(RUNS):
        before = _children()
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
        found.append(_children() - before)
    return sorted(found)[RUNS // 2]


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def _api_server() -> Iterator[str]:
    """Serve a cluster. Yield the path of a kubeconfig for it."""
    engine, _ = filled(NODES, PODS)
    lists = {
        "/api/v1/nodes": _list(node_items(NODES)),
        "/api/v1/pods": _list(pod_items(engine.ledger)),
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = lists.get(urlsplit(self.path).path, _list([]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server,
        tempfile.NamedTemporaryFile("w", suffix=".yaml") as file,
    ):
        yaml.safe_dump(kubeconfig(server.server_address[1]), file)
        file.flush()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield file.name
        finally:
            server.shutdown()


def _list(items: Sequence[bytes]) -> bytes:
    return b'{"metadata":{"resourceVersion":"1"},"items":[' + b",".join(items) + b"]}"
