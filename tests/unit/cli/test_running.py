"""What is shown again and again goes on while the cluster is away; services say that a port is taken."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.cli.configuration import ClusterSource
from gputile.cli.reads import cluster_view
from gputile.cli.reads.cluster_view import read_state, watched
from gputile.cli.reads.live_cluster import Unreadable, read_or_exit
from gputile.kube.errors import ConnectionFailed
from tests.localcluster.machine import free_ports

pytestmark = pytest.mark.requirement("B7")


async def away() -> int:
    raise ConnectionFailed("GET /api/v1/nodes: no connection to 127.0.0.1:1: connection refused" + " x" * 100)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_cluster_that_goes_away_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr(cluster_view, "POLL_EVERY_S", 0.0)
    monkeypatch.setattr(cluster_view, "redraws", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "80")
    looks = iter([1, None, None, 1, None, 2])
    shown: list[int] = []

    def look() -> int:
        try:
            found = next(looks)
        except StopIteration:
            raise KeyboardInterrupt from None
        return read_or_exit(away()) if found is None else found

    with pytest.raises(KeyboardInterrupt):
        watched(1, look, shown.append, redraw=True)
    said = capsys.readouterr()
    notes = [line for line in said.err.splitlines() if "cannot read the cluster: GET /api/v1/nodes" in line]
    assert len(notes) == 2, "once each time that it goes away"
    if terminal:
        assert shown == [1, 1, 1, 1, 2]
        assert said.out.count("\x1b[2J") == 5
        assert [len(line) for line in notes] == [80, 80]
        assert notes[0].endswith("...")
    else:
        assert shown == [1, 2]
        assert said.out == ""
        assert said.err.count("the cluster can be read again") == 2


def test_a_file_that_is_being_written_ends_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "apiVersion: gputile.io/v1alpha1\nkind: Cluster\nnodes: [{name: a, gpus: {memory: 15GiB}, mode: share}]\n"
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    source = ClusterSource(cluster=[str(file)])
    state = read_state(source)
    file.write_text("{")
    with pytest.raises(Unreadable, match=r"cannot read the cluster: .*cluster.yaml"):
        state.reread(source)
    file.write_text(text)
    assert state.reread(source) == state


def test_waiting_and_watching_do_not_go_together() -> None:
    done = CliRunner().invoke(app, ["status", "--wait", "5", "--watch"])
    assert (done.exit_code, "--wait and --watch cannot be used together" in done.stderr) == (2, True)


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
clusters: [{name: here, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {token: secret}}]
contexts: [{name: here, context: {cluster: here, user: me}}]
"""
FREE = str(free_ports(1)[0])
WEBHOOK = ["webhook", "--host=127.0.0.1", "--installed-in=n", "--service=s", "--secret=t", "--configuration=c"]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["extender"], "--port"),
        (["extender", "--port", FREE], "--health-port"),
        (["controller", "--lease-namespace=n"], "--health-port"),
        (WEBHOOK, "--port"),
        ([*WEBHOOK, "--port", FREE], "--health-port"),
    ],
)
def test_a_port_that_somebody_has(tmp_path: Path, command: list[str], option: str) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, [*command, f"{option}={port}", f"--kubeconfig={tmp_path / 'kubeconfig'}"])
    assert result.exit_code == 2
    assert f" port {port}: Address already in use; choose another with {option}\n" in result.stderr
