"""``gputile top``: rows once for programs, and live on a terminal."""

import os
import pty
import subprocess
import time

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from tests.corebuilders import gpu_node
from tests.fakes.apiserver import FakeApiServer
from tests.schemas import answer
from tests.unit.cli.programs import arguments
from tests.unit.cli.test_inspect_forms import held, put
from tests.unit.tools.web.pages import GIB

pytestmark = pytest.mark.requirement("B7")

run = CliRunner()


@pytest.mark.parametrize(("of", "heading"), [("nodes", "NODE"), ("gpus", "NODE"), ("pods", "NAMESPACE"), ("", "NODE")])
def test_rows_once(server: FakeApiServer, kubeconfig: str, of: str, heading: str) -> None:
    put(server, gpu_node("n", mode="share", sizes=[15 * GIB] * 2, unit_mib=GIB), held("web-5d4f-a", 0, 3))
    result = run.invoke(app, ["top", *([of] if of else []), "--kubeconfig", kubeconfig])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(heading)
    assert "3" in result.stdout.splitlines()[1]


def test_programs_get_all_of_it(server: FakeApiServer, kubeconfig: str) -> None:
    put(server, gpu_node("n", mode="share", sizes=[15 * GIB] * 2, unit_mib=GIB), held("web-5d4f-a", 1, 3))
    result = run.invoke(app, ["top", "-o", "json", "--kubeconfig", kubeconfig])
    found = answer("top", result.stdout)
    assert [node["name"] for node in found["nodes"]] == ["n"]
    assert [(gpu["index"], gpu["bookedMib"]) for gpu in found["gpus"]] == [(1, 3 * GIB), (0, 0)]
    assert [pod["gpus"] for pod in found["pods"]] == [[1]]


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
