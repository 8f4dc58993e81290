"""An interrupt ends each command, whenever it comes: without a word, and without leaving a process behind."""

import os
import random
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gputile.cli.commands.selftest import WORK
from tests.fakes import nvml
from tests.fakes.cuda import FakeGpus
from tests.unit.cli.programs import arguments

ENDED = (-signal.SIGINT, 128 + signal.SIGINT)  # by the signal itself, or after putting things away: 130 to a shell
MOMENT_S = 0.001  # so that who waits leaves the processor to what is waited for
CLUSTER = "apiVersion: gputile.io/v1alpha1\nkind: Cluster\nnodes: [{name: 'n', mode: share, gpus: {memory: 15GiB}}]\n"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 1}}}]}
"""


def has(pid: int, mask: str, number: int) -> bool:
    """Return whether a signal is in a mask of a process: ``SigCgt`` (handled) or ``SigIgn`` (ignored)."""
    status = Path(f"/proc/{pid}/status").read_text()
    bits = next(line for line in status.splitlines() if line.startswith(mask)).split()[1]
    return bool(int(bits, 16) >> (number - 1) & 1)


def session(pid: int) -> list[int]:
    """Return the processes of the session that ``pid`` began, zombies aside."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def interrupted(words: list[str], after: float, *, group: bool, number: int = signal.SIGINT) -> tuple[int, str]:
    """Run a command, send it a signal after so many seconds, and return its status and what it said on stderr."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        arguments("main", *words), stdout=subprocess.DEVNULL, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            while process.poll() is None and has(process.pid, "SigIgn", number):
                time.sleep(MOMENT_S)  # as a shell's background jobs begin
            if not words or words[0] != "selftest":
                while process.poll() is None and has(process.pid, "SigCgt", number):
                    time.sleep(MOMENT_S)  # Python itself is still starting, and has its own way
            with suppress(ProcessLookupError):  # it has just ended
                (os.killpg if group else os.kill)(process.pid, number)
        assert process.stderr is not None
        said = process.stderr.read()
        status = process.wait()
    while session(process.pid):  # workers see that their parent has gone; a test that waits for ever fails
        time.sleep(MOMENT_S)
    return status, said


@pytest.mark.parametrize("words", ["simulate", "inspect", "help"])
def test_at_any_moment(silent: str, tmp_path: Path, words: str) -> None:
    (tmp_path / "c").write_text(CLUSTER)
    (tmp_path / "p").write_text(POD)
    commands = {
        "simulate": ["simulate", "--cluster", str(tmp_path / "c"), "-f", str(tmp_path / "p")],
        "inspect": ["inspect", "--kubeconfig", silent],
        "help": ["--help"],
    }
    chance = random.Random(words)
    for _ in range(4):
        status, said = interrupted(commands[words], chance.uniform(0.02, 0.8), group=True)
        assert "Traceback" not in said
        assert status in (0, *ENDED)
        assert said == "" or status == 0


@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_probes_of_a_selftest_end_with_it(
    number: int, group: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus, machine = FakeGpus(tmp_path, copy_bytes_per_us=64_000), nvml.MACHINES["t4"](tmp_path / "machine")
    machine.gpus[0].uuid = gpus.uuids[0]
    machine.write()
    for name, value in gpus.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(nvml.STATE_VARIABLE, str(machine.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml.library().parent), prepend=":")
    words = ["selftest", "isolation", "--seconds", "600"]
    with tempfile.TemporaryDirectory() as directory:  # sockets in it have names of at most 107 bytes
        monkeypatch.setenv("TMPDIR", directory)
        for after in (1.5, 4.0):
            status, said = interrupted(words, after, group=group, number=number)
            assert status in (-number, 128 + number)
            assert said in ("", f"note: {WORK}\n")
            assert status == -number or list(Path(directory).iterdir()) == []
