"""Runs the first commands of newcomers as they stand: the demo, and the local cluster with what it says to try."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.walkthrough import walk
from tests.localcluster.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
LAST_LINE = "Ctrl-C ends it"


@dataclass
class LocalCluster:
    """``make cluster`` while it runs. ``text`` is what it printed when it was ready."""

    process: subprocess.Popen[str]
    text: str

    @property
    def commands(self) -> list[str]:
        """What it says to try, without the export and the comments."""
        lines = [line.strip() for line in self.text.splitlines() if line.startswith("    ")]
        return [line.partition("  #")[0].strip() for line in lines if not line.startswith("export ")]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a shell that has executed the export."""
        line = next(line.strip() for line in self.text.splitlines() if line.strip().startswith("export "))
        exported = dict(each.split("=", 1) for each in line.removeprefix("export ").split(" "))
        return {**os.environ, **exported, "PATH": exported["PATH"].replace("$PATH", os.environ["PATH"])}

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a shell that has executed the export."""
        return subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )

    def until(self, command: str, shows: str) -> str:
        """Repeat a command until it shows that; return what it prints."""
        deadline = time.monotonic() + PATIENCE_S
        while shows not in (done := self.run(command)).stdout:
            assert time.monotonic() < deadline, f"{command} does not show {shows!r}:\n{done.stdout}{done.stderr}"
            time.sleep(0.5)
        return done.stdout


@pytest.fixture(scope="module")
def local(control_plane_programs: dict[str, Path]) -> Iterator[LocalCluster]:
    """The local cluster, as getting-started.md starts it, by a shell that ignores SIGINT in background jobs."""
    assert control_plane_programs
    process = subprocess.Popen(
        ["bash", "-c", "trap '' INT; exec make --no-print-directory cluster"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")},
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if LAST_LINE in line:
            break
    try:
        assert lines, "it ends at once"
        assert LAST_LINE in lines[-1], "".join(lines)
        yield LocalCluster(process, "".join(lines))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()


def test_the_demo_draws_the_cluster_and_ends_well() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "demo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "GPU MEMORY" in done.stdout
    assert "It would fit if" in done.stdout


def test_the_first_page_is_executed(local: LocalCluster) -> None:
    """It leaves nothing behind, so that the tests below count their own pods only."""
    try:
        walk(ROOT / "docs" / "guides" / "getting-started.md", local.environment, ROOT, lambda _: None)
    finally:
        local.run("kubectl delete pods --all --now")


def test_everything_that_the_local_cluster_says_works(local: LocalCluster) -> None:
    """Each command ends well, and all pods of examples/workloads.yaml run that the demo places."""
    for command in local.commands:
        done = local.run(command)
        assert done.returncode == (3 if "explain" in command else 0), f"{command}:\n{done.stdout}{done.stderr}"
        assert done.stdout, f"{command} prints nothing"
        if "workloads.yaml" in command:
            _all_run(local)
        if "too-large.yaml" in command:
            local.until("kubectl describe pod too-large", "the pod needs 24 GiB on one GPU")
    listed = local.until("kubectl inspect cgpu", "Whole GPUs")
    assert "0/296 (0%)" not in listed


def test_ctrl_c_ends_the_local_cluster_and_removes_everything(local: LocalCluster) -> None:
    directory = next(re.finditer(r"Logs: (\S+)/\*\.log", local.text))[1]
    assert Path(directory).is_dir()
    os.killpg(local.process.pid, signal.SIGINT)
    local.process.wait(PATIENCE_S)
    assert not Path(directory).exists()


def _all_run(local: LocalCluster) -> None:
    """Wait until all pods run that the simulator places."""
    simulate = f"{Path(sys.executable).with_name('gputile')} simulate --cluster examples/cluster.yaml"
    told = json.loads(local.run(f"{simulate} -f examples/workloads.yaml -o json").stdout)["decisions"]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        pods = json.loads(local.run("kubectl get pods -o json").stdout)["items"]
        running = [pod["spec"]["nodeName"] for pod in pods if pod["status"]["phase"] == "Running"]
        if len(running) == len(pods) == len(told):
            break
        assert time.monotonic() < deadline, f"{len(running)} of {len(told)} run"
        time.sleep(0.5)
