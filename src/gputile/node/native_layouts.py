"""Defines the constants of the files and messages that the C code in native/ shares with Python.

`make layouts` writes them to native/base/layouts.h, beside the structures that native/layouts.py
defines. All numbers are little-endian, as on every processor for which the library is built.
"""

from typing import Final

from gputile.core.devices import request

MOST_GPUS: Final = request.MOST_SHARED_GPUS
"""The maximum number of GPUs of an allocation."""
UUID_SIZE: Final = 64
"""The size of a GPU's UUID with its terminating zero, in bytes."""

# The limits file has lines of words: first its name and version, then the following in any order,
# then its end.
LIMITS_NAME: Final = "gputile"
LIMITS_VERSION: Final = "1"
LIMITS_GPU: Final = "card"
"""Followed by a GPU's UUID, its MiB and its percent of time."""
LIMITS_OVERHEAD: Final = "overhead"
"""Followed by the maximum of MiB that a process is charged for contexts and modules on a GPU."""
LIMITS_SOCKET: Final = "turn"
"""Followed by the path of the arbiter's socket."""
LIMITS_END: Final = "end"
LIMITS_MOST_BYTES: Final = 8192
SOCKET_PATH_SIZE: Final = 108
"""``sun_path`` of Linux' ``sockaddr_un`` (unix(7)), in bytes."""

USAGE_VERSION: Final = 1
USAGE_MAGIC: Final = 0x65747067
USAGE_COUNTS: Final = 1
USAGE_SLOTS: Final = 512
"""The maximum number of processes of a container that use GPUs at the same time."""
USAGE_BYTES: Final = 1 << 18
"""The size of the file. The bytes beyond it are locks: one for the whole file, one per slot."""
USAGE_LOCK_ALL: Final = USAGE_BYTES
USAGE_LOCK_SLOTS: Final = USAGE_BYTES + 1

ARBITER_VERSION: Final = 1

# The share file has lines of words too.
SHARE_FIRST_LINE: Final = "gputile-share 1"
SHARE_QUANTUM: Final = "quantum"
"""Followed by the duration of a turn in microseconds."""
SHARE_GPU: Final = "card"
"""Followed by a GPU's UUID and the guaranteed part of its time."""
SHARE_END: Final = "end"
SHARE_WHOLE: Final = 1_000_000
"""All of a GPU's time; shares are parts of this number."""
