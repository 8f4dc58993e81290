"""The agent's probes and metrics over HTTP."""

import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Gauge

from gputile.agent.monitoring import monitoring_app, start_monitoring


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("problem", ["", "the kubelet has not taken the device plugins"])
def test_a_probe_says_what_is_wrong(problem: str) -> None:
    registry = CollectorRegistry()
    Gauge("gputile_agent_pods", "Pods", registry=registry).set(3)
    server = start_monitoring(0, monitoring_app(registry, lambda: "", lambda: problem))
    try:
        port = server.server_port
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/readyz") == ((503, f"{problem}\n") if problem else (200, "ok\n"))
        status, text = get(port, "/metrics")
        assert status == 200
        assert "gputile_agent_pods 3.0" in text
        assert get(port, "/")[0] == 404
    finally:
        server.shutdown()
        server.server_close()
