"""The control groups of a node, all below one of its own in each hierarchy (version 1) or in the only one (2)."""

import contextlib
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
GONE_WITHIN_S = 60.0


def make_cgroups(name: str) -> None:
    """Make the control group ``name`` everywhere.

    Raises:
        OSError: this machine does not let us.
    """
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)


def remove_cgroups(name: str) -> None:
    """Remove ``name`` with all below it; the last processes in it may be dying still."""
    deadline = time.monotonic() + GONE_WITHIN_S
    for hierarchy in _hierarchies():
        top = hierarchy / name
        while top.exists():
            for path, _, _ in os.walk(top, topdown=False):  # takes no offence at what is gone already
                with contextlib.suppress(OSError):
                    Path(path).rmdir()
            if time.monotonic() > deadline:
                break
            time.sleep(0.02 if top.exists() else 0)


def _hierarchies() -> list[Path]:
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return [path for path in sorted(ROOT.iterdir()) if (path / "cgroup.procs").exists() and not path.is_symlink()]
