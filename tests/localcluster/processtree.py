"""What a process and its children take together, from /proc."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the process IDs of a process's children; none where it has gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has gone
        for thread in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(OSError):  # this one has
                found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def command(pid: int) -> str:
    """Return a process's command line, "" where it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def daemons(state: Path) -> list[int]:
    """Return the process IDs of the MPS control daemons that run, by what an agent has written into its state."""
    found = []
    for file in state.glob("mps/*/process"):
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):  # it is just written, or removed
            found.append(int(file.read_text().split()[0]))
    return sorted(pid for pid in found if command(pid))


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time that these processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pids: Iterable[int]) -> float:
    """Return the memory that these processes have in RAM, what they share counted once (PSS), in MiB."""
    kib = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib / 1024
