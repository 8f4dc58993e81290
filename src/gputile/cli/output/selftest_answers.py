"""Defines the records that ``gputile selftest -o json`` prints."""

from typing import Annotated

import msgspec

from gputile.api.wording import described
from gputile.node.isolation.memory_check import MemoryRow
from gputile.node.isolation.time_check import TimeRow


class IsolationAnswer(msgspec.Struct, frozen=True):
    """``gputile selftest isolation -o json``."""

    memory: Annotated[list[MemoryRow], described("Memory, by each way to it.")]
    time: Annotated[list[TimeRow], described("Time on the GPU.")]


class SymbolsAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """``gputile selftest symbols -o json``: how many functions the driver has, and which are not known."""

    functions: Annotated[int, described("How many functions the driver has.")]
    unknown: Annotated[list[str], described("The functions that are not known, and so refused.")]
