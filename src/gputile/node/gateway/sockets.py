"""Tells whether somebody answers at a unix socket."""

import socket
from pathlib import Path

_WITHIN_S = 0.2


def answers(path: Path) -> bool:
    """Return whether ``path`` is a socket that somebody listens at; a dead process leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_WITHIN_S)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
