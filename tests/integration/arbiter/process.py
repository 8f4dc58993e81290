"""The arbiter as the agent runs it: a process that is told on its standard input whom to serve."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from gputile.node.arbiter.accounts import WHOLE, Share
from gputile.node.arbiter.messages import SOCKET, Assignment, encode_line
from tests.conftest import HANGS_S


class ArbiterProcess:
    """An arbiter for allocations under ``directory``; ``paths`` are their sockets."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.paths: list[Path] = []
        self._last = Assignment()
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def assign(self, containers: Mapping[str, Mapping[str, Share]], quantum_ms: int = 30) -> list[Path]:
        """Serve these containers; return the paths of their sockets."""
        assigned = {str(self.directory / name): dict(gpus) for name, gpus in containers.items()}
        for path, gpus in assigned.items():
            Path(path).mkdir(exist_ok=True)
            write_share(Path(path), quantum_ms, gpus)
        self.send(Assignment(assigned, quantum_ms))
        self.paths = [Path(path) / SOCKET for path in assigned]
        self.until_served(self.paths)
        return self.paths

    def send(self, assignment: Assignment) -> None:
        self._last = assignment
        self.send_raw(encode_line(assignment))

    def send_raw(self, text: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def until_served(self, paths: Sequence[Path]) -> None:
        end = time.monotonic() + HANGS_S
        while not all(path.is_socket() and _listened_on(path) for path in paths):
            assert self._process.poll() is None, f"the arbiter has ended with status {self._process.returncode}"
            assert time.monotonic() < end, "the arbiter does not listen"
            time.sleep(0.005)

    def kill(self) -> None:
        """Let it die without a chance to say so."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def restart(self) -> None:
        self._start()
        self.send(self._last)
        self.until_served(self.paths)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(HANGS_S)

    def _start(self) -> None:
        command = [sys.executable, "-m", "gputile.node.arbiter", "--lock", str(self.directory / "lock")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=os.environ)


def write_share(directory: Path, quantum_ms: int, gpus: Mapping[str, Share]) -> None:
    """Write the file that a client goes by without an arbiter."""
    parts = {uuid: share.guarantee or share.ceiling if share.ceiling < WHOLE else WHOLE for uuid, share in gpus.items()}
    lines = [f"card {uuid} {part}" for uuid, part in parts.items()]
    text = "\n".join(["gputile-share 1", f"quantum {quantum_ms * 1000}", *lines, "end", ""])
    beside = directory / ".share"
    beside.write_text(text)
    beside.replace(directory / "share")


def _listened_on(path: Path) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
