"""Defines the records that ``gputile selftest -o json`` prints."""

from typing import Annotated

import msgspec

from gputile.api.old_keys import OldKeys
from gputile.node.isolation.memory_check import MemoryRow
from gputile.node.isolation.time_check import TimeRow


class IsolationAnswer(OldKeys, frozen=True):
    """``gputile selftest isolation -o json``."""

    memory: Annotated[list[MemoryRow], msgspec.Meta(description="Memory, by each way to it.")]
    time: Annotated[list[TimeRow], msgspec.Meta(description="Time on the GPU.")]


class SymbolsAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """``gputile selftest symbols -o json``: how many functions the driver has, and which are not known."""

    functions: Annotated[int, msgspec.Meta(description="How many functions the driver has.")]
    unknown: Annotated[list[str], msgspec.Meta(description="The functions that are not known, and so refused.")]
