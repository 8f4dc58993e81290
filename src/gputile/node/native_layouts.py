"""Defines constants of the files and messages that the C code in native/ shares with Python.

`make layouts` writes these constants to native/base/layouts.h, together with the structures that
native/layouts.py defines. All numbers in files and messages are little-endian.
"""

from typing import Final

from gputile.core.devices import request

MOST_GPUS: Final = request.MOST_SHARED_GPUS
"""The largest number of GPUs in one allocation."""
UUID_SIZE: Final = 64
"""The size in bytes of a GPU's UUID with the terminating zero."""

# The limits file consists of lines of words. The first line contains LIMITS_NAME and the version,
# and the last line LIMITS_END. Each other line begins with one of the following words.
LIMITS_NAME: Final = "gputile"
LIMITS_VERSION: Final = "1"
LIMITS_GPU: Final = "card"
"""Followed by a GPU's UUID, the memory limit in MiB, and the percentage of the GPU's time."""
LIMITS_OVERHEAD: Final = "overhead"
"""Followed by the most MiB that a process is charged for contexts and modules on one GPU."""
LIMITS_SOCKET: Final = "turn"
"""Followed by the path of the arbiter's socket."""
LIMITS_END: Final = "end"
LIMITS_MOST_BYTES: Final = 8192
SOCKET_PATH_SIZE: Final = 108
"""The size in bytes of ``sun_path`` in Linux' ``sockaddr_un`` (unix(7))."""

USAGE_VERSION: Final = 1
USAGE_MAGIC: Final = 0x65747067
USAGE_COUNTS: Final = 1
USAGE_SLOTS: Final = 512
"""The largest number of processes of a container that use GPUs at the same time."""
USAGE_BYTES: Final = 1 << 18
"""The size in bytes. The bytes beyond it are locks: one for the file, then one for each slot."""
USAGE_LOCK_ALL: Final = USAGE_BYTES
USAGE_LOCK_SLOTS: Final = USAGE_BYTES + 1

ARBITER_VERSION: Final = 1

# The share file also consists of lines of words.
SHARE_FIRST_LINE: Final = "gputile-share 1"
SHARE_QUANTUM: Final = "quantum"
"""Followed by the duration of a turn in microseconds."""
SHARE_GPU: Final = "card"
"""Followed by a GPU's UUID and the guaranteed part of the GPU's time."""
SHARE_END: Final = "end"
SHARE_WHOLE: Final = 1_000_000
"""The number that stands for all of a GPU's time. A part of the time is a smaller number."""
