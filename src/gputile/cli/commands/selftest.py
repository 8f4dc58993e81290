"""Runs ``gputile selftest``, which proves that isolation holds on this machine."""

import math
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gputile.api.wording import described
from gputile.cli.app import CONTEXT
from gputile.cli.options import Printed, option
from gputile.cli.running import unwinding_on_signals
from gputile.cli.terminal import ExitCode, Output, Progress, fail, write, write_data, write_table
from gputile.node.isolation.selftest import MemoryRow, TimeRow

MISSED = ExitCode.FAILED
SAY_AFTER_S = 1.0
WORK = "taking memory and time of a GPU, which takes up to a minute"
LIMIT_MIB = 2048
LONGEST_S = 3600


class IsolationAnswer(msgspec.Struct, frozen=True):
    """``gputile selftest isolation -o json``."""

    memory: Annotated[list[MemoryRow], described("Memory, by each way to it.")]
    time: Annotated[list[TimeRow], described("Time on the GPU.")]


selftest = typer.Typer(
    help="Prove on this machine that isolation holds.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)


@selftest.command("isolation")
def isolation(
    limit_mib: Annotated[int, option("MIB", "The memory limit to test.", min=64)] = LIMIT_MIB,
    seconds: Annotated[
        float, option("SECONDS", "How long a measurement of shares of time takes; 0: none.", min=0, max=LONGEST_S)
    ] = 4.0,
    output: Printed = Output.TABLE,
) -> None:
    """Take GPU memory in every way, on the first GPU, and GPU time under an arbiter, and compare with what was asked.

    Exit code: 0 when every bound held, 1 when one was missed.
    """
    from gputile.node.isolation.library import LibraryMissing
    from gputile.node.isolation.selftest import memory_rows, time_rows

    if math.isnan(seconds):
        fail(f"--seconds {seconds}: not a number")
    try:
        with (
            _temporary_root(),
            unwinding_on_signals(_kill_children),
            Progress(WORK, after=SAY_AFTER_S, piped=SAY_AFTER_S),
        ):
            uuid, environment = _first_gpu()
            memory = list(memory_rows(uuid, limit_mib, environment))
            times = list(time_rows(uuid, environment, seconds)) if seconds else []
    except LibraryMissing as error:
        fail(str(error))
    if output.is_data:
        write_data(IsolationAnswer(memory, times), output)
    else:
        _print(memory)
        _print_times(times)
    if not all([*(row.holds for row in memory), *(row.holds for row in times)]):
        raise typer.Exit(MISSED)


def _kill_children() -> None:
    """Kill all child processes, including one that is just being started."""
    for thread in Path("/proc/self/task").iterdir():
        for child in (thread / "children").read_text(encoding="ascii").split():
            os.kill(int(child), signal.SIGKILL)  # only this process reaps it, so the PID is not reused


@contextmanager
def _temporary_root() -> Iterator[None]:
    """Create all temporary directories within one, which is removed at the end even after an interrupt."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="gputile-") as root:
        tempfile.tempdir = root
        try:
            yield
        finally:
            tempfile.tempdir = before


def _first_gpu() -> tuple[str, dict[str, str]]:
    """Return the UUID of the first GPU, and the environment in which a process sees only that GPU."""
    from gputile.node.nvml.nvml_probe import open_real
    from gputile.node.nvml.probe import NvmlError

    try:
        gpus = open_real().inventory().gpus
    except NvmlError as error:
        fail(f"no GPU was found ({error}): run it on a GPU node")
    if not gpus:
        fail("no GPU was found: run it on a GPU node")
    return gpus[0].uuid, {"CUDA_VISIBLE_DEVICES": gpus[0].uuid}


def _print(rows: "list[MemoryRow]") -> None:
    lines: list[tuple[str, ...]] = [("MEMORY", "PROCESSES", "LIMIT MIB", "ASKED MIB", "GOT MIB", "")]
    for row in rows:
        verdict = "holds" if row.holds else f"MISSED {row.failed}".strip()
        lines.append((row.way, *map(str, (row.processes, row.limit_mib, row.asked_mib, row.got_mib)), verdict))
    write_table(lines)


def _print_times(rows: "list[TimeRow]") -> None:
    lines: list[tuple[str, ...]] = [("TIME", "BOUND", "GOT", "RATIO WANTED", "RATIO GOT", "")]
    for row in rows:
        ratios = (f"{row.wanted_ratio:.2f}", f"{row.ratio:.2f}") if row.wanted_ratio else ("", "")
        verdict = "holds" if row.holds else f"MISSED {row.failed}".strip()
        lines.append((row.what, row.bound or "by ratio", f"{row.got:.1%}", *ratios, verdict))
    if rows:
        write("\n")
        write_table(lines)
