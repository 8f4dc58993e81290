"""Services that cannot have their ports."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from tests.localcluster.ports import free_ports

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
