"""Answers for the agents of nodes on which nothing runs: each pod uses a part of what it holds.

There is a pod for each agent, as the chart's DaemonSet makes them, so that `gputile top`, `web` and `status` find it.
"""

import json
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gputile.api.quantity import MIB
from gputile.api.well_known import ALLOCATION_ANNOTATION, INVENTORY_ANNOTATION
from gputile.core.devices.inventory import decode_inventory
from tests.localcluster.client import STRATEGIC_PATCH, Api
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import EXAMPLES
from tests.localcluster.nodes import NodeSpec

PODS = "/api/v1/namespaces/gputile/pods"
NAME = "gputile-agent-"
LABELS = {"app.kubernetes.io/name": "gputile", "app.kubernetes.io/component": "agent"}


@contextmanager
def played_agents(plane: ControlPlane, nodes: Iterable[NodeSpec]) -> Iterator[None]:
    """Play the agents of nodes; without any where this machine has no address but loopback, which is not proxied to."""
    address = _address()
    if not address:
        yield
        return
    plane.kubectl("apply", "-f", str(EXAMPLES / "agent" / "rbac.yaml"))
    api, started = plane.api, time.monotonic()
    gpus_of = {f"{NAME}{node.name}": _gpus(node) for node in nodes}

    class Agents(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # All agents have one address: the API server's proxy says which pod was meant.
            pod = self.headers.get("X-Forwarded-Uri", "").partition("/pods/")[2].partition(":")[0]
            if self.path != "/metrics" or pod not in gpus_of:
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            text = _metrics(api, pod.removeprefix(NAME), gpus_of[pod], time.monotonic() - started)
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer((address, 0), Agents) as server:
        threading.Thread(target=server.serve_forever, name="agents", daemon=True).start()
        for pod in gpus_of:
            api.post(PODS, _pod(pod, server.server_port))
            status = {"podIP": address, "podIPs": [{"ip": address}]}
            api.patch(f"{PODS}/{pod}/status", {"status": status}, STRATEGIC_PATCH)
        try:
            yield
        finally:
            server.shutdown()


def _gpus(node: NodeSpec) -> list[int]:
    text = node.annotations.get(INVENTORY_ANNOTATION)
    return [gpu.index for gpu in decode_inventory(text).gpus] if text else []


def _metrics(api: Api, node: str, gpus_of_node: Iterable[int], seconds: float) -> str:
    """Return what the agent of a node would export, ``seconds`` after its start."""
    pods = api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node},status.phase=Running")["items"]
    held = {
        f'namespace="{pod["metadata"]["namespace"]}",pod="{pod["metadata"]["name"]}"': json.loads(text)["cards"]
        for pod in pods
        if (text := pod["metadata"].get("annotations", {}).get(ALLOCATION_ANNOTATION))
    }
    on_gpu = Counter(gpu["index"] for gpus in held.values() for gpu in gpus)
    used = dict.fromkeys(gpus_of_node, 0)
    lines = ["gputile_agent_starts_total 1"]
    for labels, gpus in held.items():
        part = 0.5 + zlib.crc32(labels.encode()) % 45 / 100
        for gpu in gpus:
            index, amount = gpu["index"], round(part * gpu["mib"]) * MIB
            used[index] += amount
            compute = gpu["percent"] / 100 if "percent" in gpu else 1 / on_gpu[index]
            both = f'{labels},container="main",gpu="{index}"'
            lines.append(f"gputile_agent_container_memory_used_bytes{{{both}}} {amount}")
            lines.append(f"gputile_agent_gpu_time_seconds_total{{{both}}} {part * compute * seconds:.3f}")
    lines += [f'gputile_agent_gpu_memory_used_bytes{{gpu="{index}"}} {amount}' for index, amount in used.items()]
    return "\n".join(lines) + "\n"


def _pod(name: str, port: int) -> dict[str, Any]:
    container = {
        "name": "agent",
        "image": "localhost/gputile",
        "ports": [{"name": "metrics", "containerPort": port}],
    }
    spec = {"nodeName": name.removeprefix(NAME), "serviceAccountName": "gputile-agent", "containers": [container]}
    return {"metadata": {"name": name, "labels": LABELS}, "spec": spec}


def _address() -> str:
    """Return the address by which this machine reaches others, "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])
