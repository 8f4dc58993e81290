"""Runs the arbiter as the agent starts it: ``python -m gputile.node.arbiter --lock FILE``.

It reads assignments from its standard input, a line each, and ends when that is closed: no arbiter without an agent.
The kernel kills it when the agent's thread that started it ends before.
"""

import argparse
import asyncio
import ctypes
import fcntl
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

from gputile.api.quantity import MIB
from gputile.node.arbiter.agent_messages import Assignment, AssignmentError, Used, decode_assignment, encode_usage
from gputile.node.arbiter.server import TRY_AGAIN_S, Arbiter

log = logging.getLogger("gputile.node.arbiter")

MOST_LINE: Final = 16 * MIB
MOST_FILES: Final = 65536
LOOK_EVERY_S: Final = 0.1
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


async def serve(lock: int | None, report_every: float = 0.0) -> None:
    """Serve until standard input is closed; say every so many seconds what was used, never for 0.

    ``lock`` is an open file that only one arbiter of the node locks, None where there is no other.
    """
    reader = asyncio.StreamReader(limit=MOST_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    arbiter, latest, alone = Arbiter(), Assignment(), lock is None

    async def take_over(lock: int) -> None:
        nonlocal alone
        await _locked(lock)
        alone = True
        arbiter.assign(latest)

    async with asyncio.TaskGroup() as beside:
        tasks = [beside.create_task(_listen_again(arbiter))]
        if lock is not None:
            tasks.append(beside.create_task(take_over(lock)))
        if report_every:
            tasks.append(beside.create_task(_report(arbiter, report_every)))
        try:
            while line := await reader.readline():
                try:
                    latest = decode_assignment(line)
                except AssignmentError as error:
                    log.error("what the agent says is not understood: %s", error)
                else:
                    if alone:
                        arbiter.assign(latest)
        finally:
            for task in tasks:
                task.cancel()
            arbiter.close()


async def _locked(lock: int) -> None:
    """Wait until no other arbiter of this node runs."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(LOOK_EVERY_S)
        else:
            return


async def _listen_again(arbiter: Arbiter) -> None:
    """Listen later where it could not be done at first."""
    while True:
        await asyncio.sleep(TRY_AGAIN_S)
        arbiter.listen()


async def _report(arbiter: Arbiter, every: float) -> None:
    """Say on standard output what was used; where nobody reads, nothing piles up."""
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout)
    said: Used = {}
    while not pipe.is_closing():
        await asyncio.sleep(every)
        used = arbiter.used()
        if used != said and not pipe.get_write_buffer_size():
            said = used
            pipe.write(encode_usage(used))


def main() -> None:
    parser = argparse.ArgumentParser(prog="gputile.node.arbiter", description="Hand out time on this node's GPUs.")
    parser.add_argument("--lock", type=Path, help="a file that only one arbiter of the node holds")
    parser.add_argument(
        "--report-every", type=float, default=0.0, metavar="SECONDS", help="say what was used; 0: never"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # One that hangs would hold the lock for ever that the next agent's arbiter waits for.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(most, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    try:
        lock = os.open(arguments.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) if arguments.lock else None
    except OSError as error:
        sys.exit(f"error: the lock {arguments.lock} cannot be taken: {error.strerror}")
    asyncio.run(serve(lock, arguments.report_every))


if __name__ == "__main__":
    main()
