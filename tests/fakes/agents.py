"""What agents say of the use of GPUs, behind the API server's proxy to their pods."""

from collections.abc import Mapping
from typing import Any

from tests.fakes.apiserver import FakeApiServer

PODS = "/api/v1/namespaces/gputile/pods"
PORT = 8085


def agent_pod(node: str, *, ready: bool = True) -> dict[str, Any]:
    """Return the pod of a node's agent, as the chart makes it."""
    return {
        "metadata": {
            "name": f"agent-{node}",
            "labels": {"app.kubernetes.io/name": "gputile", "app.kubernetes.io/component": "agent"},
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "proxy"}, {"ports": [{"name": "metrics", "containerPort": PORT}]}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def metrics_path(node: str) -> str:
    """Return the path under which the API server asks a node's agent."""
    return f"{PODS}/agent-{node}:{PORT}/proxy/metrics"


def metrics_text(used: Mapping[str, int], seconds: Mapping[str, float] | None = None) -> bytes:
    """Return the metrics of a node with one GPU: bytes used and seconds had, by ``namespace/name``."""
    lines = [
        "# HELP gputile_agent_gpu_info Always 1. The labels are the GPU's UUID and model",
        "# TYPE gputile_agent_gpu_info gauge",
        'gputile_agent_gpu_info{gpu="0",uuid="GPU-a",model="NVIDIA \\"A10\\", 24 GiB"} 1.0',
        f'gputile_agent_gpu_memory_used_bytes{{gpu="0"}} {sum(used.values()) + (1 << 20)}.0',
        "gputile_agent_pods 2.0",
    ]
    for name, values in (("container_memory_used_bytes", used), ("gpu_time_seconds_total", seconds or {})):
        for key, value in values.items():
            namespace, _, pod = key.partition("/")
            labels = f'namespace="{namespace}",pod="{pod}",container="c",gpu="0"'
            lines.append(f"gputile_agent_{name}{{{labels}}} {value}")
    return "\n".join([*lines, ""]).encode()


def put_agent(server: FakeApiServer, node: str, text: bytes, status: int = 200) -> None:
    """Have a node's agent answer this."""
    server.put(PODS, agent_pod(node))
    server.proxied[metrics_path(node)] = status, text
