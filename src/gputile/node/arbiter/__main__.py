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
from gputile.node.arbiter.agent_messages import AssignmentError, Used, decode_assignment, encode_usage
from gputile.node.arbiter.server import TRY_AGAIN_S, Arbiter

log = logging.getLogger("gputile.node.arbiter")

MOST_LINE: Final = 16 * MIB
MOST_FILES: Final = 65536
LOOK_EVERY_S: Final = 0.1
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class _Input(asyncio.StreamReader):
    """Knows that it was closed before it was read: ``at_eof`` says so only afterwards."""

    closed = False

    def feed_eof(self) -> None:
        self.closed = True
        super().feed_eof()


async def serve(lock: Path | None, report_every: float = 0.0) -> None:
    """Serve until standard input is closed; say every so many seconds what was used, never for 0."""
    reader = _Input(limit=MOST_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    if not await _alone(lock, reader):
        return
    arbiter = Arbiter()
    beside = [loop.create_task(_listen_again(arbiter))]
    if report_every:
        beside.append(loop.create_task(_report(arbiter, report_every)))
    try:
        while line := await reader.readline():
            try:
                await arbiter.assign(decode_assignment(line))
            except AssignmentError as error:
                log.error("what the agent says is not understood: %s", error)
    finally:
        for task in beside:
            task.cancel()
        arbiter.close()


async def _alone(lock: Path | None, reader: _Input) -> bool:
    """Wait until no other arbiter of this node runs; return False if that is no longer wanted."""
    if lock is None:
        return True
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        sys.exit(f"error: the lock {lock} cannot be taken: {error.strerror}")
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if reader.closed:
                return False
            await asyncio.sleep(LOOK_EVERY_S)
        else:
            return True


async def _listen_again(arbiter: Arbiter) -> None:
    """Listen later where it could not be done at first."""
    while True:
        await asyncio.sleep(TRY_AGAIN_S)
        await arbiter.listen()


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
    asyncio.run(serve(arguments.lock, arguments.report_every))


if __name__ == "__main__":
    main()
