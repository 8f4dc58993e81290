"""Nothing that a test starts outlives it, and what fails says why."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.localcluster import binaries, scratch, skipping
from tests.localcluster.processes import Process, ProcessFailed
from tests.localcluster.toolchain import ComponentMissing

ROOT = Path(__file__).parent.parent.parent
KILLED_STARTER = """
import os, signal
from pathlib import Path
from tests.localcluster.processes import Process
process = Process("sleeper", ["sleep", "60"], Path(os.devnull))
process.start()
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def running(pid: int) -> bool:
    try:
        state = (Path("/proc") / str(pid) / "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_ended(pid: int) -> None:
    deadline = time.monotonic() + 60
    while running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def test_a_process_that_ends_early_is_reported_with_its_log(tmp_path: Path) -> None:
    process = Process("teller", ["sh", "-c", "echo no such luck; exit 3"], tmp_path / "log")
    process.start()
    with pytest.raises(ProcessFailed, match=r"teller ended with exit code 3:\nno such luck"):
        process.wait_ready(lambda: False)


def test_a_process_that_does_not_get_ready_is_reported_with_its_log(tmp_path: Path) -> None:
    with Process("slow", ["sh", "-c", "echo still at it; sleep 60"], tmp_path / "log") as process:
        process.start()
        process.wait_ready(lambda: "still" in process.log_text())
        with pytest.raises(ProcessFailed, match=r"slow was not ready after 0.1 s:\nstill at it"):
            process.wait_ready(lambda: False, timeout=0.1)
    assert not process.alive


def test_a_process_is_killed_with_its_children_and_can_be_started_again(tmp_path: Path) -> None:
    process = Process("parent", ["sh", "-c", "sleep 60 & echo $!; wait"], tmp_path / "log")
    for start in (1, 2):
        process.start()
        process.wait_ready(lambda lines=start: process.log_text().count("\n") == lines)  # type: ignore[misc]
        process.kill()
        assert process.exit_code == -9
    for child in process.log_text().split():
        wait_ended(int(child))


def test_a_process_dies_with_the_one_that_started_it() -> None:
    command = [sys.executable, "-c", KILLED_STARTER]
    starter = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert starter.returncode == -9, starter.stderr
    wait_ended(int(starter.stdout))


def test_the_directory_of_a_killed_run_is_removed_and_that_of_a_living_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    abandoned = tmp_path / f"{scratch.PREFIX}abandoned"
    abandoned.mkdir()
    (abandoned / scratch.LOCK).touch()
    living = scratch.Scratch()
    another = scratch.Scratch()
    assert sorted(tmp_path.iterdir()) == sorted([living.path, another.path])
    living.remove()
    another.remove()
    assert not list(tmp_path.iterdir())


def test_a_directory_of_programs_must_have_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etcd").touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert binaries.find(["etcd"]) == {"etcd": tmp_path / "etcd"}
    with pytest.raises(ComponentMissing, match=r"has no kube-apiserver, kube-scheduler; add it"):
        binaries.find(["kube-scheduler", "etcd", "kube-apiserver"])


def test_another_version_of_kubernetes_is_one_that_there_is_a_module_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(binaries.OTHER_VERSION, raising=False)
    own = binaries.kubernetes_version()
    for minor in ("1.30", "1.37"):
        monkeypatch.setenv(binaries.OTHER_VERSION, minor)
        assert binaries.kubernetes_version().startswith(f"v{minor}.")
        assert binaries.kubernetes_version() != own
    monkeypatch.setenv(binaries.OTHER_VERSION, "../controlplane")
    with pytest.raises(ComponentMissing, match=r"known are 1\.30, 1\.37"):
        binaries.kubernetes_version()


@pytest.mark.parametrize(
    ("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)], ids=["on CI", "elsewhere"]
)
def test_a_missing_component_fails_on_ci_and_skips_elsewhere(
    ci: str, outcome: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setattr(skipping, "_outcome", {})
    with pytest.raises(outcome, match="has no kubelet"):
        skipping.components_or_skip(["kubelet"])
