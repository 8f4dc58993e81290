"""What ``-o json`` of ``gputile selftest`` prints, as records."""

import msgspec

from gputile.api.old_keys import OldKeys
from gputile.node.isolation.memory_check import MemoryRow
from gputile.node.isolation.time_check import TimeRow


class IsolationAnswer(OldKeys, frozen=True):
    """``gputile selftest isolation -o json``."""

    memory: list[MemoryRow]
    time: list[TimeRow]


class SymbolsAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """``gputile selftest symbols -o json``: how many functions the driver has, and which are not known."""

    functions: int
    unknown: list[str]
