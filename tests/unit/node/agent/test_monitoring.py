"""The agent's probes and metrics over HTTP."""

import contextlib
import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Gauge

from gputile.node.agent.monitoring import NodeProblem, monitoring
from gputile.support.http_server import STANDARD_LIMITS
from gputile.support.listening import PortError
from tests.conftest import HANGS_S

DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def monitored(
    not_ready: NodeProblem = lambda: None, registry: CollectorRegistry | None = None
) -> contextlib.AbstractContextManager[int]:
    return monitoring(0, registry or CollectorRegistry(), lambda: None, not_ready)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with DIRECTLY.open(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("problem", [None, "the kubelet has not registered the device plugins"])
def test_a_probe_says_what_is_wrong(problem: str | None) -> None:
    registry = CollectorRegistry()
    Gauge("gputile_agent_pods", "Pods", registry=registry).set(3)
    with monitored(lambda: problem, registry) as port:
        assert get(port, "/healthz") == (200, "ok")
        assert get(port, "/readyz") == ((503, problem) if problem else (200, "ok"))
        status, text = get(port, "/metrics")
        assert status == 200
        assert "gputile_agent_pods 3.0" in text
        assert get(port, "/")[0] == 404


def test_who_asks_nothing_keeps_no_probe_waiting() -> None:
    """Otherwise any pod that reaches the port could have the kubelet kill the agent again and again."""
    with monitored() as port, contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(STANDARD_LIMITS.connections)
        ]
        for each in silent:
            each.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
        assert get(port, "/healthz") == (200, "ok")
        silent[0].settimeout(HANGS_S)
        with contextlib.suppress(ConnectionResetError):  # the server closes it, with or without a reset
            assert silent[0].recv(1) == b""


def test_a_port_that_somebody_has_is_named() -> None:
    with (
        monitored() as port,
        contextlib.ExitStack() as stack,
        pytest.raises(PortError, match=rf"port {port}: Address already in use; choose another with --health-port"),
    ):
        stack.enter_context(monitoring(port, CollectorRegistry(), lambda: None, lambda: None))
