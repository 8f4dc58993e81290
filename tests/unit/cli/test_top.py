"""``gputile top``: rows once for programs, and live on a terminal."""

import os
import pty
import subprocess
import time

import pytest
from typer.testing import CliRunner

from gputile.cli import agent_usage
from gputile.cli.app import app
from tests.corebuilders import gpu_node
from tests.fakes.agents import metrics_path, metrics_text, put_agent
from tests.fakes.apiserver import FakeApiServer
from tests.localcluster.gputile import EXAMPLES
from tests.schemas import answer
from tests.unit.cli.programs import arguments
from tests.unit.cli.test_inspect_forms import held, put
from tests.unit.tools.web.pages import GIB

pytestmark = pytest.mark.requirement("B7")

run = CliRunner()


@pytest.mark.parametrize(
    ("of", "heading", "shown"),
    [("nodes", "NODE", "3/30"), ("gpus", "NODE", "3/15"), ("pods", "NAMESPACE", "web-5d4f-a"), ("", "NODE", "3/30")],
)
def test_rows_once(server: FakeApiServer, kubeconfig: str, of: str, heading: str, shown: str) -> None:
    put(server, gpu_node("n", mode="share", sizes=[15 * GIB] * 2, unit_mib=GIB), held("web-5d4f-a", 0, 3))
    result = run.invoke(app, ["top", *([of] if of else []), "--kubeconfig", kubeconfig])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(heading)
    assert shown in result.stdout.splitlines()[1]


def test_programs_get_all_of_it(server: FakeApiServer, kubeconfig: str) -> None:
    put(server, gpu_node("n", mode="share", sizes=[15 * GIB] * 2, unit_mib=GIB), held("web-5d4f-a", 1, 3))
    result = run.invoke(app, ["top", "-o", "json", "--kubeconfig", kubeconfig])
    found = answer("top", result.stdout)
    assert [node["name"] for node in found["nodes"]] == ["n"]
    assert [(gpu["index"], gpu["bookedMib"]) for gpu in found["gpus"]] == [(1, 3 * GIB), (0, 0)]
    assert [pod["gpus"] for pod in found["pods"]] == [[1]]


def test_what_is_used_stands_beside_what_is_booked(
    server: FakeApiServer, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_usage, "BETWEEN_S", 0.0)
    put(server, gpu_node("n", mode="cgpu", sizes=[15 * GIB], unit_mib=GIB), held("web-5d4f-a", 0, 3))
    put_agent(server, "n", metrics_text({"default/web-5d4f-a": 2 << 30}, {"default/web-5d4f-a": 60}))
    command = ["top", "--kubeconfig", kubeconfig]
    result = run.invoke(app, [*command, "pods"])
    assert result.stdout.splitlines()[1].split() == ["default", "web-5d4f-a", "n", "0", "3", "2", "-", "0%", "bound"]
    assert "use is" not in result.stderr
    found = answer("top", run.invoke(app, [*command, "-o", "json"]).stdout)
    assert [pod["usedMib"] for pod in found["pods"]] == [2 * GIB]
    assert [node["usedMib"] for node in found["nodes"]] == [2 * GIB + 1]
    assert server.requests[-1].path == server.requests[-2].path == metrics_path("n"), "GPU time needs two readings"


def test_who_may_not_ask_the_agents_sees_what_is_booked_and_why_no_more(server: FakeApiServer, kubeconfig: str) -> None:
    for node in ("n", "m"):
        put(server, gpu_node(node, mode="cgpu", sizes=[15 * GIB], unit_mib=GIB))
        put_agent(server, node, b"")
        server.refused[metrics_path(node)] = (403, "Forbidden")
        del server.proxied[metrics_path(node)]
    put(server, held("web-5d4f-a", 0, 3))
    result = run.invoke(app, ["top", "gpus", "--kubeconfig", kubeconfig])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[:6] == ["n", "0", "-", "3/15", "20%", "-"]
    assert "use is not known of 2 of 2 nodes: you may not ask the agents" in result.stderr
    assert result.stderr.count("pods/proxy") == 1


def test_of_very_many_nodes_those_with_most_pods_are_asked(
    server: FakeApiServer, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_usage, "MOST_NODES", 1)
    for node in ("a", "n"):
        put(server, gpu_node(node, mode="cgpu", sizes=[15 * GIB], unit_mib=GIB))
        put_agent(server, node, metrics_text({}))
    put(server, held("web-5d4f-a", 0, 3))
    result = run.invoke(app, ["top", "--kubeconfig", kubeconfig])
    asked = [request.path for request in server.requests if request.path.endswith("/metrics")]
    assert asked == [metrics_path("n")]
    assert "use is shown of the 1 nodes with most pods, of 2" in result.stderr


def test_a_cluster_in_a_file_has_no_agents() -> None:
    result = run.invoke(app, ["top", "--cluster", str(EXAMPLES / "cluster.yaml")])
    assert result.exit_code == 0
    assert "use is" not in result.stderr


def test_a_terminal_sees_what_changes(server: FakeApiServer, kubeconfig: str) -> None:
    put(server, gpu_node("n", mode="share", sizes=[15 * GIB] * 2, unit_mib=GIB))
    ours, theirs = pty.openpty()
    command = arguments("main", "top", "pods", "--kubeconfig", kubeconfig)
    with subprocess.Popen(command, stdout=theirs, stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        text = b""
        ends = time.monotonic() + 60
        while b"NAMESPACE" not in text and time.monotonic() < ends:
            text += os.read(ours, 4096)
        put(server, held("web-5d4f-a", 0, 3))
        while b"web-5d4f-a" not in text and time.monotonic() < ends:
            text += os.read(ours, 4096)
        process.kill()
    os.close(ours)
    assert b"web-5d4f-a" in text
