"""``gputile web`` where it cannot begin: it says why in a line, and with an exit code that tells whose fault it is."""

import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.corebuilders import gpu_node
from tests.unit.cli.programs import arguments

pytestmark = pytest.mark.requirement("B7")

run = CliRunner()


def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("clusters: [")
    for name in ("broken", "missing"):
        result = run.invoke(app, ["web", "--kubeconfig", str(tmp_path / name)])
        assert result.exit_code == 2
        assert result.stderr.startswith("error: cannot read the cluster: ")


@pytest.mark.parametrize("refused", ["nodes", "pods"])
def test_half_the_rights_are_not_enough_and_the_missing_one_is_named(
    server: FakeApiServer, kubeconfig: str, refused: str
) -> None:
    """Without all pods nobody could say what of a GPU is free."""
    server.refused[f"/api/v1/{refused}"] = (403, "Forbidden")
    result = run.invoke(app, ["web", "--kubeconfig", kubeconfig])
    assert result.exit_code == 1
    assert "403 Forbidden" in result.stderr
    assert f"GET /api/v1/{refused}" in result.stderr


def test_a_certificate_that_is_not_there(server: FakeApiServer, kubeconfig: str, tmp_path: Path) -> None:
    result = run.invoke(app, ["web", "--port", "0", "--tls-dir", str(tmp_path), "--kubeconfig", kubeconfig])
    assert result.exit_code == 2
    assert f"{tmp_path}/tls.crt: No such file or directory" in result.stderr


def test_it_prints_its_address_and_ends_with_an_interrupt(server: FakeApiServer, kubeconfig: str) -> None:
    server.store["/api/v1/nodes"]["a"] = msgspec.to_builtins(gpu_node("a", mode="cgpu"))
    command = arguments("main", "web", "--port", "0", "--kubeconfig", kubeconfig)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}\n", line)
        process.send_signal(2)
        assert process.wait(60) == -2
