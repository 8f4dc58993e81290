"""Finds the sources of a release, their time, and their commit."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sources:
    """The directory of the sources, their time, and their commit.

    The time is in seconds of Unix time. The commit is "" if the sources are not exactly a commit.
    """

    project: Path
    epoch: int
    revision: str


def sources_of(project: Path) -> Sources:
    """Return the sources in a directory.

    Their time is SOURCE_DATE_EPOCH, or else the time of the last commit, or 0 in an unpacked
    archive. Sources that differ from the commit, or that contain untracked files, have no commit.
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
    """Return the output of git, or None if there is no git or no repository."""
    try:
        output = subprocess.check_output(
            ["git", *arguments], cwd=project, stderr=subprocess.DEVNULL, text=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return output.strip()
