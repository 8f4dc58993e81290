"""Tests whether memory limits and shares of GPU time are enforced on this machine.

To test memory, a probe tries to allocate twice its limit. It must get no more than its limit, and
not much less. This is repeated for each way to allocate memory. To test GPU time, an arbiter runs,
and the probes of several containers keep the GPU busy at the same time.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Annotated, Final

import msgspec

from gputile.api.wording import described
from gputile.node.arbiter.accounts import WHOLE, Share
from gputile.node.arbiter.messages import SOCKET, Assignment, encode_line
from gputile.node.isolation.library import LIMITS, USAGE, GpuLimit, encode_limits, library_path
from gputile.node.isolation.probe import PIECE_MIB, WAYS
from gputile.node.native_layouts import USAGE_BYTES

# A probe may stay below its limit by the size of a context and the granularity of a memory pool
# (docs/concepts/isolation.md).
SLACK_MIB: Final = 1024 + 2 * PIECE_MIB
LIMIT_MIB: Final = 2048
SECONDS: Final = 4.0
MOST_ROUNDS: Final = 8
CLOSE: Final = 0.05
LEAST_ALONE: Final = 0.98
_WITHIN_S: Final = 120


class MemoryRow(msgspec.Struct, frozen=True, rename="camel"):
    """The result of testing one memory limit with one or more processes."""

    way: Annotated[str, described("The way in which the probe allocated memory.")]
    processes: Annotated[int, described("The number of processes that shared the limit.")]
    limit_mib: Annotated[int, described("The memory limit in MiB.")]
    asked_mib: Annotated[int, described("The MiB that the processes tried to allocate.")]
    got_mib: Annotated[int, described("The MiB that the processes could allocate.")]
    holds: Annotated[bool, described("Whether the limit held.")]
    failed: Annotated[str, described('Another error, or "" if there was none.')] = ""


def memory_rows(uuid: str, limit_mib: int, environment: Mapping[str, str]) -> Iterator[MemoryRow]:
    """Yield a row for each way to allocate, and then one for each of two limits tested together.

    Two processes share each of these two limits, and all four allocate at the same time. A pair may
    stay below its limit by at most twice as many MiB as a single process did, plus the size of two
    pieces. ``environment`` makes a process see only the GPU ``uuid``. Raises LibraryMissing if this
    installation has no library.
    """
    alone = [_memory_rows(way, 1, uuid, [limit_mib], environment, SLACK_MIB)[0] for way in WAYS]
    yield from alone
    missed = limit_mib - alone[0].got_mib + PIECE_MIB
    limits = [limit_mib, limit_mib // 2]
    yield from _memory_rows(alone[0].way, 2, uuid, limits, environment, 2 * missed)


def _memory_rows(
    way: str,
    processes: int,
    uuid: str,
    limits_mib: Sequence[int],
    environment: Mapping[str, str],
    slack_mib: int,
) -> list[MemoryRow]:
    asked = 2 * max(limits_mib)
    with tempfile.TemporaryDirectory(prefix="gputile-") as directory, ExitStack() as stack:
        running = []
        for number, limit in enumerate(limits_mib):
            allocation = Path(directory, str(number))
            _make_allocation(allocation, encode_limits([GpuLimit(uuid, limit)]))
            probe = ["memory", way, str(asked)]
            running.append(
                [_start_probe(probe, allocation, environment, stack) for _ in range(processes)]
            )
        everyone = [process for group in running for process in group]
        for process in everyone:
            _go(process)
        # Each probe keeps its memory until all probes have printed their result.
        answers = [
            [process.stdout.readline() if process.stdout else "" for process in group]
            for group in running
        ]
        errors = {
            process.pid: process.communicate("\n", timeout=_WITHIN_S)[1] for process in everyone
        }
    rows = []
    for group, limit, got_each in zip(running, limits_mib, answers, strict=True):
        got = sum(int(answer or 0) for answer in got_each)
        failed = next((errors[process.pid].strip() for process in group if process.returncode), "")
        holds = not failed and limit - slack_mib <= got <= limit
        rows.append(MemoryRow(way, processes, limit, asked, got, holds, failed))
    return rows


def _start_probe(
    arguments: Sequence[str],
    allocation: Path | None,
    environment: Mapping[str, str],
    stack: ExitStack,
) -> subprocess.Popen[str]:
    """Start a probe, and wait until it is ready. Without ``allocation``, it has no library."""
    variables = {**os.environ, **environment}
    if allocation is not None:
        variables |= {"GPUTILE_DIRECTORY": str(allocation), "LD_PRELOAD": str(library_path())}
    command = [sys.executable, "-m", "gputile.node.isolation.probe", *arguments]
    pipe = subprocess.PIPE
    probe = subprocess.Popen(
        command, env=variables, text=True, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0
    )
    stack.enter_context(probe)
    stack.callback(probe.kill)
    if probe.stdout is not None:
        probe.stdout.readline()
    return probe


def _go(probe: subprocess.Popen[str]) -> None:
    if probe.stdin is not None and probe.poll() is None:
        probe.stdin.write("\n")
        probe.stdin.flush()


def _make_allocation(allocation: Path, limits: bytes) -> None:
    allocation.mkdir()
    (allocation / LIMITS).write_bytes(limits)
    (allocation / USAGE).write_bytes(bytes(USAGE_BYTES))


class TimeRow(msgspec.Struct, frozen=True, rename="camel"):
    """The expected and the measured part of a GPU's time that one container gets.

    A process without the library gets the part 1.0. Each switch between containers costs some time.
    Tests that therefore check only the ratio between containers have the ``bound`` "".
    """

    what: Annotated[str, described("The name of the measurement.")]
    wanted: Annotated[
        float,
        described(
            "The expected part of the GPU's time. A process without the library gets the part 1."
        ),
    ]
    got: Annotated[float, described("The measured part of the GPU's time.")]
    wanted_ratio: Annotated[
        float,
        described(
            "The expected part, divided by the expected part of the first container of this case. "
            "It is 0 for the first container."
        ),
    ]
    ratio: Annotated[
        float,
        described(
            "The measured part, divided by the measured part of the first container of this case. "
            "It is 0 for the first container."
        ),
    ]
    holds: Annotated[bool, described("Whether both the bound and the ratio held.")]
    failed: Annotated[str, described('The error, or "" if there was none.')] = ""
    bound: Annotated[
        str, described('The condition on the measured part, or "" if only the ratio is checked.')
    ] = ""


class ProbeError(RuntimeError):
    """A probe failed."""


def time_rows(
    uuid: str, environment: Mapping[str, str], seconds: float = SECONDS
) -> Iterator[TimeRow]:
    """Yield rows for one container alone, for two with ceilings, and for two with weights.

    Each of these three cases is repeated until it passes, at most ``MOST_ROUNDS`` times. For two
    containers, the result is the mean of all rounds. For one container, it is the best round,
    because other programs on the machine sometimes slow down a process. ``environment`` makes a
    process see only the GPU ``uuid``. Raises LibraryMissing if this installation has no library.
    """
    capped = [Share(part, part * WHOLE // 100, part * WHOLE // 100) for part in (30, 60)]
    cases = (
        (("alone",), [Share()], (1.0,)),
        (("30 % of two", "60 % of two"), capped, (0.3, 0.6)),
        (("weight 1 of two", "weight 3 of two"), [Share(1), Share(3)], (0.25, 0.75)),
    )
    for names, shares, wanted in cases:
        rows: list[TimeRow] = []
        rounds: list[list[float]] = []
        for _ in range(MOST_ROUNDS):
            try:
                rate = _fills(environment, [None], seconds)[0]
                with tempfile.TemporaryDirectory(prefix="gputile-") as directory:
                    fills = _arbitrated(Path(directory), uuid, environment, shares, seconds)
            except ProbeError as error:
                rows = [
                    TimeRow(name, 0.0, 0.0, 0.0, 0.0, holds=False, failed=str(error))
                    for name in names
                ]
                break
            rounds.append([fill / rate for fill in fills])
            combine = max if len(shares) == 1 else mean
            rows = _judge(
                names, shares, wanted, [combine(parts) for parts in zip(*rounds, strict=True)]
            )
            if all(row.holds for row in rows):
                break
        yield from rows


def _judge(
    names: Sequence[str], shares: Sequence[Share], wanted: Sequence[float], got: Sequence[float]
) -> list[TimeRow]:
    rows = []
    for i, (name, share) in enumerate(zip(names, shares, strict=True)):
        wanted_ratio, ratio = (wanted[i] / wanted[0], got[i] / got[0]) if i else (0.0, 0.0)
        bound = ""
        holds = i == 0 or abs(ratio / wanted_ratio - 1) < CLOSE
        if share.ceiling < WHOLE:
            bound = f"at most {wanted[i] * (1 + CLOSE):.1%}"
            holds = holds and got[i] <= wanted[i] * (1 + CLOSE)
        elif len(shares) == 1:
            bound = f"at least {LEAST_ALONE:.1%}"
            holds = got[i] >= LEAST_ALONE
        rows.append(
            TimeRow(
                name, wanted[i], round(got[i], 3), wanted_ratio, round(ratio, 3), holds, bound=bound
            )
        )
    return rows


def _arbitrated(
    directory: Path,
    uuid: str,
    environment: Mapping[str, str],
    shares: Sequence[Share],
    seconds: float,
) -> list[float]:
    directories = [directory / str(number) for number in range(len(shares))]
    for allocation in directories:
        _make_allocation(
            allocation, encode_limits([GpuLimit(uuid, LIMIT_MIB)], turn=str(allocation / SOCKET))
        )
    containers = {
        str(allocation): {uuid: share}
        for allocation, share in zip(directories, shares, strict=True)
    }
    # The arbiter and the probes have their own process groups, so that Ctrl-C reaches only this
    # process, which then ends all of them.
    command = [sys.executable, "-m", "gputile.node.arbiter", "--lock", str(directory / "lock")]
    arbiter = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0
    )
    try:
        assert arbiter.stdin is not None  # noqa: S101 - it is a pipe
        arbiter.stdin.write(encode_line(Assignment(containers)))
        arbiter.stdin.flush()
        end = time.monotonic() + _WITHIN_S
        while not all((allocation / SOCKET).exists() for allocation in directories):
            if arbiter.poll() is not None or time.monotonic() > end:
                raise ProbeError("the arbiter does not start")
            time.sleep(0.01)
        return _fills(environment, directories, seconds)
    finally:
        arbiter.communicate()


def _fills(
    environment: Mapping[str, str], directories: Sequence[Path | None], seconds: float
) -> list[float]:
    """Run a probe for each directory, all at the same time. Return their fills per second.

    For the directory None, the probe has no library.
    """
    with ExitStack() as stack:
        probes = [
            _start_probe(["time", str(seconds)], allocation, environment, stack)
            for allocation in directories
        ]
        for probe in probes:
            _go(probe)
        outputs = [probe.communicate(timeout=seconds + _WITHIN_S) for probe in probes]
    for probe, (out, err) in zip(probes, outputs, strict=True):
        if probe.returncode or not out:
            raise ProbeError(err.strip() or f"a probe ended with {probe.returncode}")
    return [float(out) for out, _ in outputs]
