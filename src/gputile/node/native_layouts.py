"""Defines the binary layouts and constants that the C code in native/ shares with Python.

Python uses the ``struct`` formats of this module. `make layouts` writes native/base/layouts.h and the header of the
simulated driver: the same structures in C, with assertions on their sizes and offsets, and the same constants. All
numbers are little-endian, as on every processor for which the library is built.
"""

import struct
from dataclasses import dataclass
from typing import Final

from gputile.core.devices import request

MOST_GPUS: Final = request.MOST_SHARED_GPUS
"""The maximum number of GPUs of an allocation."""
UUID_SIZE: Final = 64
"""The size of a GPU's UUID with its terminating zero, in bytes."""

# The limits file has lines of words: first its name and version, then the following in any order, then its end.
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
"""The size of the file. The bytes beyond it serve as locks: one for the whole file, then one for each slot."""
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

SIMULATED_MAGIC: Final = 0x64756366
SIMULATED_MOST_GPUS: Final = 8
SIMULATED_MOST_PROCESSES: Final = 256


RESERVED: Final = "reserved"


@dataclass(frozen=True)
class Field:
    """A field of a structure: ``rows`` of ``count`` values. ``type`` is a letter of ``struct``, or a structure."""

    name: str
    type: "str | Layout"
    count: int = 1
    meaning: str = ""
    rows: int = 1

    @property
    def size(self) -> int:
        return (
            self.rows
            * self.count
            * (self.type.size if isinstance(self.type, Layout) else struct.calcsize(f"<{self.type}"))
        )


@dataclass(frozen=True)
class Layout:
    """A structure, without implicit padding, that C and Python share."""

    name: str
    fields: tuple[Field, ...]

    @property
    def size(self) -> int:
        return sum(field.size for field in self.fields)

    @property
    def offsets(self) -> dict[str, int]:
        found, at = {}, 0
        for field in self.fields:
            found[field.name] = at
            at += field.size
        return found

    @property
    def struct(self) -> struct.Struct:
        """The ``struct`` format: an array of bytes is one value, other numbers one each; reserved fields have none.

        Raises:
            ValueError: it contains structures.
        """
        letters = []
        for field in self.fields:
            if isinstance(field.type, Layout):
                raise ValueError(f"{self.name} contains structures")
            if field.name == RESERVED:
                letters.append(f"{field.size}x")
            else:
                letters.append(f"{field.count}{'s' if field.type == 'B' and field.count > 1 else field.type}")
        return struct.Struct("<" + "".join(letters))


ARBITER_MESSAGE: Final = Layout(
    "arbiter_message",
    (
        Field("kind", "B"),
        Field("version", "B"),
        Field("gpu", "H"),
        Field("turn", "I"),
        Field("a", "Q"),
        Field("b", "Q"),
        Field("unused", "Q"),
    ),
)

USAGE_SLOT: Final = Layout(
    "gputile_usage_slot",
    (
        Field("pid", "i", meaning="0: free. In the container's namespace, where all of its processes see each other"),
        Field("unused", "I"),
        Field("started", "Q", meaning="clock ticks after boot, /proc/<pid>/stat"),
    ),
)
USAGE: Final = Layout(
    "gputile_usage",
    (
        Field("magic", "I"),
        Field("version", "I"),
        Field("top", "I", meaning="slots from here on were never taken"),
        Field("counts", "I", meaning="1: peak and refused are counted; a library from before them leaves 0"),
        Field("slot", USAGE_SLOT, USAGE_SLOTS),
        Field("used", "Q", USAGE_SLOTS, "bytes", rows=MOST_GPUS),
        Field("word", "Q", MOST_GPUS, "the container's account of each GPU's time"),
        Field("peak", "Q", MOST_GPUS, "the most that was held at once, bytes"),
        Field("refused", "Q", MOST_GPUS, "requests for memory that the limit refused"),
        Field("context", "Q", MOST_GPUS, "the least that a process's first context took, bytes; 0: not known yet"),
    ),
)

SIMULATED_HEADER: Final = Layout(
    "simulated_header", (Field("magic", "I"), Field("gpus", "I"), Field("driver_version", "I"), Field("unused", "I"))
)
SIMULATED_GPU: Final = Layout(
    "simulated_gpu",
    (
        Field("uuid", "B", 16),
        Field("total", "Q", meaning="bytes"),
        Field("used", "Q"),
        Field("peak", "Q", meaning="the most that was ever in use"),
        Field("context_bytes", "Q", meaning="what a context takes"),
        Field("module_bytes", "Q", meaning="what a loaded module takes"),
        Field("free_at_ns", "Q", meaning="CLOCK_MONOTONIC: when the GPU has done all that was submitted"),
        Field("busy_ns", "Q"),
        Field("launches", "Q"),
        Field("bytes_per_us", "Q", meaning="of memory copies; 0: they take no time"),
        Field(RESERVED, "Q", 5),
    ),
)
SIMULATED_PROCESS: Final = Layout(
    "simulated_process",
    (
        Field("pid", "i"),
        Field(RESERVED, "I"),
        Field("used", "Q", SIMULATED_MOST_GPUS, "bytes"),
        Field("busy_ns", "Q", SIMULATED_MOST_GPUS),
        Field("launches", "Q"),
    ),
)
SIMULATED_MACHINE: Final = Layout(
    "simulated_machine",
    (
        Field("header", SIMULATED_HEADER),
        Field("gpu", SIMULATED_GPU, SIMULATED_MOST_GPUS),
        Field("process", SIMULATED_PROCESS, SIMULATED_MOST_PROCESSES),
    ),
)

LAYOUTS: Final = (
    ARBITER_MESSAGE,
    USAGE_SLOT,
    USAGE,
    SIMULATED_HEADER,
    SIMULATED_GPU,
    SIMULATED_PROCESS,
    SIMULATED_MACHINE,
)
