"""What a release is made of: the sources, their time, and the commit that they are."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sources:
    """The ``project``'s directory, its time in seconds of Unix time, and the commit that it is,
    "" if it is none.
    """

    project: Path
    epoch: int
    revision: str


def sources_of(project: Path) -> Sources:
    """Return the sources in a directory.

    Their time is SOURCE_DATE_EPOCH, else the last commit's, 0 in an unpacked archive. What differs
    from the commit, or has files beside it, is no commit.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    epoch = int(given or _git(project, "log", "-1", "--format=%ct") or 0)
    changed = _git(project, "status", "--porcelain")
    return Sources(
        project,
        epoch,
        "" if changed is None or changed else _git(project, "rev-parse", "HEAD") or "",
    )


def _git(project: Path, *arguments: str) -> str | None:
    """Return what git prints; None where there is no git, or no repository."""
    try:
        output = subprocess.check_output(
            ["git", *arguments], cwd=project, stderr=subprocess.DEVNULL, text=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return output.strip()
