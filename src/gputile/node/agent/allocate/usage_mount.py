"""Small file systems for what containers write: ``python -m gputile.node.agent.allocate.usage_mount MIB DIRECTORY...``.

The chart runs it as an init container of the agent, the only thing of the agent that may mount. The mounts are made
in directories of the host whose mounts are shared, and stay there when the container ends.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

from gputile.node.agent.advertise.mps import SEVERAL, SINGLE
from gputile.node.agent.nosuid import SOURCE, is_ours
from gputile.node.isolation.limits_format import USAGE

_OWN: Final = (USAGE, SINGLE, SEVERAL)  # what an agent leaves there where nothing is mounted
# linux/mount.h
_NOSUID, _NODEV, _NOEXEC, _REMOUNT = 2, 4, 8, 32


def mount_usage(directory: Path, mib: int) -> None:
    """Mount a file system of ``mib`` MiB in memory at ``directory``, or give the one that is there this size.

    Raises:
        OSError: this process may not mount, more is in use there than ``mib``, or others' files would be hidden.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    again = is_ours(directory)
    if not again and (others := [path for path in directory.iterdir() if not path.name.startswith(_OWN)]):
        raise OSError(f"{directory} is not gputile's alone, there is {others[0].name}: name a directory of its own")
    flags = _NOSUID | _NODEV | _NOEXEC | (_REMOUNT if again else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={mib}m,mode=0700"
    if libc.mount(SOURCE.encode(), os.fsencode(directory), b"tmpfs", ctypes.c_ulong(flags), options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"mounting {directory}: {os.strerror(number)}")


if __name__ == "__main__":
    try:
        for each in sys.argv[2:]:
            mount_usage(Path(each), int(sys.argv[1]))
    except OSError as error:
        sys.exit(f"error: {error}")
