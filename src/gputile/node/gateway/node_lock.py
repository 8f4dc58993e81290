"""Decides who serves the node when two gateways run for a moment, as in an upgrade.

The younger one claims a file. The older one then writes nothing more and lets go of the kubelet.
"""

import contextlib
from pathlib import Path

from gputile.support.files import read_whole, write_whole

_MOST_BYTES = 4096


class NodeLock:
    """A gateway's claim, and its agents': ``token`` is theirs alone."""

    def __init__(self, file: Path, token: str) -> None:
        self._file = file
        self._token = token
        self._mine = True

    def take(self) -> None:
        """Make the node ours.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(self._file, self._token.encode())
        self._mine = True

    @property
    def mine(self) -> bool:
        """Whether nobody has claimed the node since; where the file cannot be read, it is as it was before."""
        with contextlib.suppress(OSError):
            self._mine = read_whole(self._file, _MOST_BYTES) == self._token.encode()
        return self._mine
