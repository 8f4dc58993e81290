"""Runs ``gputile selftest``, which tests whether this machine enforces the limits of containers."""

import math
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import msgspec
import typer

from gputile.api.wording import described
from gputile.cli.app import CONTEXT
from gputile.cli.options import Printed, option
from gputile.cli.terminal import ExitCode, Output, Progress, fail, write, write_data, write_table
from gputile.node.isolation.selftest import MemoryRow, TimeRow

MISSED = ExitCode.FAILED
SAY_AFTER_S = 1.0
WORK = "using memory and time of a GPU, which takes up to a minute"
LIMIT_MIB = 2048
LONGEST_S = 3600


class IsolationAnswer(msgspec.Struct, frozen=True):
    memory: Annotated[
        list[MemoryRow], described("The tests of the memory limit, one for each kind of memory.")
    ]
    time: Annotated[list[TimeRow], described("The tests of shares of GPU time.")]


selftest = typer.Typer(
    help="Test on this machine that containers cannot exceed their limits.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)


@selftest.command("isolation")
def isolation(
    limit_mib: Annotated[int, option("MIB", "The memory limit to test.", min=64)] = LIMIT_MIB,
    seconds: Annotated[
        float,
        option(
            "SECONDS",
            "The duration of each measurement of GPU time. 0 skips these measurements.",
            min=0,
            max=LONGEST_S,
        ),
    ] = 4.0,
    output: Printed = Output.TABLE,
) -> None:
    """Test whether the limits of containers are enforced on the first GPU.

    Allocates memory in every supported way, and shares the GPU's time through an arbiter.

    Exit code: 0 if every limit was enforced, or 1 otherwise.
    """
    from gputile.node.isolation.library import LibraryMissing
    from gputile.node.isolation.selftest import memory_rows, time_rows

    if math.isnan(seconds):
        fail(f"--seconds {seconds}: not a number")
    try:
        with (
            _temporary_root(),
            _unwinding_on_signals(),
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
    """Kill all child processes, including a process that is being started at this moment."""
    for thread in Path("/proc/self/task").iterdir():
        for child in (thread / "children").read_text(encoding="ascii").split():
            # Only this process reaps the child, so the PID cannot have been reused.
            os.kill(int(child), signal.SIGKILL)


@contextmanager
def _unwinding_on_signals() -> Iterator[None]:
    """On a termination signal, kill the child processes, leave all open contexts, and exit.

    Further signals are ignored during the clean-up. A signal that is ignored when the context is
    entered stays ignored.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        _kill_children()
        sys.exit(128 + number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {
        each: found for each in signals if (found := signal.getsignal(each)) is not signal.SIG_IGN
    }
    try:
        for number in before:
            signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _temporary_root() -> Iterator[None]:
    """Create all temporary directories in one directory, which is removed at the end."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="gputile-") as root:
        tempfile.tempdir = root
        try:
            yield
        finally:
            tempfile.tempdir = before


def _first_gpu() -> tuple[str, dict[str, str]]:
    """Return the UUID of the first GPU, and an environment in which processes see only this GPU."""
    from pynvml import NVMLError  # type: ignore[import-untyped]

    from gputile.node.nvml.errors import problem_of
    from gputile.node.nvml.nvml_probe import NvmlSession

    try:
        gpus = NvmlSession().inventory().gpus
    except NVMLError as error:
        fail(f"no GPU was found ({problem_of(error.value).message}): run this test on a GPU node")
    if not gpus:
        fail("no GPU was found: run this test on a GPU node")
    return gpus[0].uuid, {"CUDA_VISIBLE_DEVICES": gpus[0].uuid}


def _print(rows: "list[MemoryRow]") -> None:
    lines: list[tuple[str, ...]] = [
        ("MEMORY", "PROCESSES", "LIMIT MIB", "ASKED MIB", "GOT MIB", "")
    ]
    for row in rows:
        verdict = "holds" if row.holds else f"MISSED {row.failed}".strip()
        lines.append(
            (
                row.way,
                *map(str, (row.processes, row.limit_mib, row.asked_mib, row.got_mib)),
                verdict,
            )
        )
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
