"""What the library parses, for fuzzers: the targets of ``fuzz.c``, and what their inputs look like."""

import struct
from collections.abc import Mapping

LIMITS = b"gputile 1\ncard GPU-0 1024 30\noverhead 512\nturn /etc/gputile/allocation/time.sock\nend\n"
SHARE = b"gputile-share 1\nquantum 30000\ncard GPU-0 500000\ncard GPU-1 1000000\nend\n"


def _message(kind: int, version: int, a: int = 0, b: int = 0) -> bytes:
    return struct.pack("<BBHIQQQ", kind, version, 0, 1, a, b, 0)


# By the name of the target's function after `fuzz_`.
SEEDS: Mapping[str, tuple[bytes, ...]] = {
    "limits": (LIMITS, LIMITS.replace(b"end\n", b"card GPU-1 1 0\nend\n")),
    "share": (SHARE,),
    "link": (_message(65, 0, 1, 30_000_000) + _message(66, 1, 30_000_000) + _message(67, 1) + _message(68, 1),),
    "usage": (b"", struct.pack("<IIII", 0x65747067, 1, 1, 0) + struct.pack("<iIQ", 2**31 - 1, 0, 7)),
}
WORDS: Mapping[str, tuple[bytes, ...]] = {
    "limits": (b"gputile 1\n", b"card ", b"GPU-0", b" 100", b"overhead ", b"turn /", b"end\n", b" ", b"\n"),
    "share": (b"gputile-share 1\n", b"quantum ", b"card ", b"GPU-0", b" 1000000", b"end\n", b" ", b"\n", b"\0"),
}
