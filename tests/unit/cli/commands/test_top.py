"""``gputile top``: rows once for programs, and live on a terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import termios

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from gputile.api.core import Node, NodeCondition
from gputile.cli.app import app
from gputile.tools.web import top_rows
from tests.fakes.agents import metrics_path, metrics_text, put_agent
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.corebuilders import gpu_node
from tests.fakes.livecluster import GIB, held, put
from tests.localcluster.gputile import EXAMPLES
from tests.unit.cli.programs import arguments
from tests.unit.docs.schemas import answer

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


def test_pods_of_one_namespace(server: FakeApiServer, kubeconfig: str) -> None:
    put(server, gpu_node("n", mode="share", sizes=[15 * GIB] * 2, unit_mib=GIB), held("web-5d4f-a", 1, 3))
    shown = {}
    for words in (["-n", "default"], ["-n", "other"], ["-n", "other", "-A"]):
        result = run.invoke(app, ["top", "pods", "-o", "yaml", "--kubeconfig", kubeconfig, *words])
        found = yaml.safe_load(result.stdout)
        shown[" ".join(words)] = [pod["name"] for pod in found["pods"]]
        assert found["nodes"][0]["bookedMib"] == 3 * GIB
    assert shown == {"-n default": ["web-5d4f-a"], "-n other": [], "-n other -A": ["web-5d4f-a"]}


def test_what_is_used_stands_beside_what_is_booked(
    server: FakeApiServer, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_rows, "BETWEEN_S", 0.0)
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
    assert "use is unknown for 2 of 2 nodes: you may not read the agents" in result.stderr
    assert result.stderr.count("403 Forbidden") == 1


def test_of_very_many_nodes_those_with_most_pods_are_asked(
    server: FakeApiServer, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_rows, "MOST_NODES", 1)
    for node in ("a", "n"):
        put(server, gpu_node(node, mode="cgpu", sizes=[15 * GIB], unit_mib=GIB))
        put_agent(server, node, metrics_text({}))
    put(server, held("web-5d4f-a", 0, 3))
    result = run.invoke(app, ["top", "--kubeconfig", kubeconfig])
    asked = [request.path for request in server.requests if request.path.endswith("/metrics")]
    assert asked == [metrics_path("n")]
    assert "use is shown for 1 of 2 nodes: the busiest ones" in result.stderr


def test_a_cluster_in_a_file_has_no_agents() -> None:
    result = run.invoke(app, ["top", "pods", "-n", "nobody", "--cluster", str(EXAMPLES / "cluster.yaml")])
    assert result.exit_code == 0
    assert "use is" not in result.stderr
    assert result.stderr.endswith("note: no pods have GPUs in namespace nobody\n")


PROBLEM = "GPU 0 (GPU-8b7c1a4e-1111-2222-3333-444455556666): XID 79 has fallen off the bus; GPU 1: double bit ECC error"


def sick(name: str) -> Node:
    found = gpu_node(name, mode="share", sizes=[15 * GIB] * 2, unit_mib=GIB)
    bad = NodeCondition(type="gputile.io/CardProblem", status="True", reason="CardUnhealthy", message=PROBLEM)
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, conditions=(bad,)))


def test_a_picture_is_no_higher_than_the_terminal(server: FakeApiServer, kubeconfig: str) -> None:
    for number in range(30):
        put(server, sick(f"gpu-node-with-a-long-name-{number:02}"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = arguments("main", "top", "--kubeconfig", kubeconfig, "--request-timeout", "2s")
    environment = {**{name: value for name, value in os.environ.items() if name != "COLUMNS"}, "TERM": "xterm"}
    text = b""
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        while b"use --installed-in for another namespace\r\n" not in text:
            text += os.read(ours, 65536)
        process.kill()
    os.close(ours)
    picture = text.rpartition(b"\x1b[3J")[2].decode().splitlines()
    assert picture[0].startswith("NODE")
    assert sum(max(1, -(-len(line) // 80)) for line in picture) < 24
    assert sum(line.startswith("gpu-node") for line in picture) >= 6
    (more,) = [line for line in picture if line.startswith("... and ")]
    assert more == f"... and {30 - sum(line.startswith('gpu-node') for line in picture)} more nodes"
