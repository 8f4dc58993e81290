"""Checks that the memory limit holds on each way to memory.

A probe asks for twice the limit, and gets the limit.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import msgspec

from gputile.api.wording import described
from gputile.node.isolation.library import LIMITS, USAGE, GpuLimit, encode_limits, library_path
from gputile.node.isolation.probe import PIECE_MIB, WAYS
from gputile.node.native_layouts import USAGE_BYTES

TOGETHER: Final = 4
# What a probe may miss of its limit: its context, and a pool's last grain; see docs/concepts/isolation.md.
SLACK_MIB: Final = 1024 + 2 * PIECE_MIB
_WITHIN_S: Final = 120


class MemoryRow(msgspec.Struct, frozen=True, rename="camel"):
    """What one way to memory got, in MiB; ``processes`` of one allocation shared the limit.

    ``failed`` says what else went wrong.
    """

    way: Annotated[str, described("The way to memory.")]
    processes: Annotated[int, described("How many processes of one allocation shared the limit.")]
    limit_mib: Annotated[int, described("The limit, MiB.")]
    asked_mib: Annotated[int, described("What was asked for, MiB.")]
    got_mib: Annotated[int, described("What was got, MiB.")]
    holds: Annotated[bool, described("Whether the limit held.")]
    failed: Annotated[str, described('What else went wrong, "" for nothing.')] = ""


def memory_rows(
    uuid: str, limit_mib: int, environment: Mapping[str, str], slack_mib: int = SLACK_MIB
) -> Iterator[MemoryRow]:
    """Yield a row for each way, and one for each of two allocations whose processes all ask at the same time.

    ``environment`` is what makes a process see the GPU with ``uuid``, alone. The two allocations have different
    limits; each must get its own, less what a process alone was seen to miss of it, for each process.

    Raises:
        LibraryMissing: this install has no library.
    """
    alone = [_rows(way, 1, uuid, [limit_mib], environment, slack_mib)[0] for way in WAYS]
    yield from alone
    missed = limit_mib - alone[0].got_mib + PIECE_MIB
    limits = [limit_mib, limit_mib // 2]
    yield from _rows(alone[0].way, TOGETHER // len(limits), uuid, limits, environment, missed * TOGETHER // len(limits))


def _rows(
    way: str, processes: int, uuid: str, limits_mib: Sequence[int], environment: Mapping[str, str], slack_mib: int
) -> list[MemoryRow]:
    asked = 2 * max(limits_mib)
    with tempfile.TemporaryDirectory(prefix="gputile-") as directory, ExitStack() as stack:
        running = []
        for number, limit in enumerate(limits_mib):
            place = Path(directory, str(number))
            place.mkdir()
            (place / LIMITS).write_bytes(encode_limits([GpuLimit(uuid, limit)]))
            (place / USAGE).write_bytes(bytes(USAGE_BYTES))
            running.append([start_program(way, asked, place, environment, stack) for _ in range(processes)])
        everyone = [process for group in running for process in group]
        for process in everyone:
            _tell(process)
        # Each holds what it got until all have answered.
        answers = [[process.stdout.readline() if process.stdout else "" for process in group] for group in running]
        said = {process.pid: process.communicate("\n", timeout=_WITHIN_S)[1] for process in everyone}
    rows = []
    for group, limit, got_each in zip(running, limits_mib, answers, strict=True):
        got = sum(int(answer or 0) for answer in got_each)
        failed = next((said[process.pid].strip() for process in group if process.returncode), "")
        holds = not failed and limit - slack_mib <= got <= limit
        rows.append(MemoryRow(way, processes, limit, asked, got, holds, failed))
    return rows


def start_program(
    way: str, asked_mib: int, place: Path, environment: Mapping[str, str], stack: ExitStack
) -> subprocess.Popen[str]:
    """Start a probe and wait until it has its context, which is measured only where nothing else is going on."""
    variables = {**os.environ, **environment, "GPUTILE_DIRECTORY": str(place), "LD_PRELOAD": str(library_path())}
    command = [sys.executable, "-m", "gputile.node.isolation.probe", way, str(asked_mib)]
    pipe = subprocess.PIPE
    probe = subprocess.Popen(command, env=variables, text=True, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0)
    stack.enter_context(probe)
    stack.callback(probe.kill)
    if probe.stdout is not None:
        probe.stdout.readline()
    return probe


def _tell(probe: subprocess.Popen[str]) -> None:
    if probe.stdin is not None and probe.poll() is None:
        probe.stdin.write("\n")
        probe.stdin.flush()
