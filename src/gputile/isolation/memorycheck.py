"""Does the limit hold? One row for each way to memory: a probe asks for twice the limit, and gets the limit."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gputile.isolation.library import library_path
from gputile.isolation.limits import LIMITS, USAGE, USAGE_BYTES, CardLimit, encode_limits
from gputile.isolation.probe import PIECE_MIB, WAYS

TOGETHER: Final = 4
# What a probe may miss of its limit: its context, and a pool's last grain; see docs/isolation.md.
SLACK_MIB: Final = 1024 + 2 * PIECE_MIB
_WITHIN_S: Final = 120


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """What one way to memory got, in MiB; ``processes`` shared the limit. ``failed`` says what else went wrong."""

    way: str
    processes: int
    limit_mib: int
    asked_mib: int
    got_mib: int
    holds: bool
    failed: str = ""


def memory_rows(
    uuid: str, limit_mib: int, environment: Mapping[str, str], slack_mib: int = SLACK_MIB
) -> Iterator[MemoryRow]:
    """Yield a row for each way, and one for processes that ask at the same time.

    ``environment`` is what makes a process see the card with ``uuid``, alone.

    Raises:
        LibraryMissing: this install has no library.
    """
    for way in WAYS:
        yield _row(way, 1, uuid, limit_mib, environment, slack_mib)
    yield _row(next(iter(WAYS)), TOGETHER, uuid, limit_mib, environment, slack_mib * TOGETHER)


def _row(
    way: str, processes: int, uuid: str, limit_mib: int, environment: Mapping[str, str], slack_mib: int
) -> MemoryRow:
    asked = 2 * limit_mib
    with tempfile.TemporaryDirectory(prefix="gputile-") as directory, ExitStack() as stack:
        Path(directory, LIMITS).write_bytes(encode_limits([CardLimit(uuid, limit_mib)]))
        Path(directory, USAGE).write_bytes(bytes(USAGE_BYTES))
        variables = {**os.environ, **environment, "GPUTILE_DIRECTORY": directory, "LD_PRELOAD": str(library_path())}
        command = [sys.executable, "-m", "gputile.isolation.probe", way, str(asked)]
        running = []
        for _ in range(processes):
            pipe = subprocess.PIPE
            probe = subprocess.Popen(command, env=variables, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
            running.append(stack.enter_context(probe))
            stack.callback(probe.kill)
        # Each holds what it got until all have answered.
        answers = [process.stdout.readline() if process.stdout else "" for process in running]
        said = [process.communicate("\n", timeout=_WITHIN_S)[1] for process in running]
    got = sum(int(answer or 0) for answer in answers)
    failed = next((text.strip() for text, process in zip(said, running, strict=True) if process.returncode), "")
    holds = not failed and limit_mib - slack_mib <= got <= limit_mib
    return MemoryRow(way, processes, limit_mib, asked, got, holds, failed)
