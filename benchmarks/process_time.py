"""Reads the CPU time of another process."""

import os
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used so far, in user space and in the kernel (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
