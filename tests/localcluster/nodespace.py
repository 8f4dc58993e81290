"""A mount and a PID namespace for a node: ``python -m tests.localcluster.nodespace DIRECTORY``.

Kubelet and agent find their usual paths there, with DIRECTORY behind them, and the machine's own stay as they are. When
the first process of the namespace dies, the kernel kills all others and drops all mounts, so nothing of a node can
outlive it: no container, no shim, no overlay. It dies with its parent, and that with the tests.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 4096, 16384, 1 << 18, 1 << 20
PR_SET_PDEATHSIG = 1
PID_FILE = "namespace.pid"
BOUND = {"kubelet": "/var/lib/kubelet", "log": "/var/log", "gputile": "/var/lib/gputile"}
_libc = ctypes.CDLL(None, use_errno=True)


def entering(directory: Path) -> list[str]:
    """Return the beginning of a command line that runs the rest of it in the namespaces of ``directory``."""
    pid = (directory / PID_FILE).read_text()
    return ["nsenter", f"--target={pid}", "--mount", "--pid", "--"]


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str = "none", flags: int = 0) -> None:
    _check(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, None), f"mounting {target}")


def main() -> None:
    """Make the namespaces, say the process id of the first process in them, and wait for its end."""
    directory = Path(sys.argv[1])
    _check(_libc.unshare(CLONE_NEWNS | CLONE_NEWPID), "unshare")
    _mount("none", "/", flags=MS_REC | MS_PRIVATE)
    for name, target in BOUND.items():
        Path(target).mkdir(parents=True, exist_ok=True)
        (directory / name).mkdir(exist_ok=True)
        _mount(str(directory / name), target, flags=MS_BIND)
    _mount("tmpfs", "/run", "tmpfs")
    _mount("none", "/", flags=MS_REC | MS_SHARED)  # within the namespace: what a container mounts, its node sees
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        _first_process(reader, writer)
    os.close(writer)
    if os.read(reader, 1) == b"":
        sys.exit("the first process of the namespace ended early")
    file = directory / f"{PID_FILE}.new"
    file.write_text(str(first))
    file.rename(directory / PID_FILE)
    os.waitpid(first, 0)


def _first_process(reader: int, writer: int) -> None:
    """Wait for orphans for ever, as an init does."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    os.close(reader)
    _mount("proc", "/proc", "proc")
    os.write(writer, b".")  # fails if the parent died before the first line of this function
    os.close(writer)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            continue


if __name__ == "__main__":
    main()
