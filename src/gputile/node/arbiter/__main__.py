"""Runs the arbiter. The agent starts it as ``python -m gputile.node.arbiter --lock FILE``.

The arbiter reads assignments from standard input, one per line. An assignment lists all containers
with their shares. The arbiter must never run without an agent. So it exits when its standard input
is closed, and the kernel kills the arbiter when the thread of the agent that started it ends.
"""

import argparse
import asyncio
import ctypes
import fcntl
import logging
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Final

from gputile.api.quantity import MIB
from gputile.node.arbiter.messages import Assignment, LineError, Used, decode_line, encode_line
from gputile.node.arbiter.server import Arbiter

log = logging.getLogger("gputile.node.arbiter")

MOST_LINE: Final = 16 * MIB
LOCK_RETRY_MS: Final = 100
PERIOD_S: Final = 1.0
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


async def serve() -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MOST_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    pipe, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout)
    arbiter = Arbiter()
    async with asyncio.TaskGroup() as background:
        periodic = background.create_task(_every_second(arbiter, pipe))
        try:
            while line := await reader.readline():
                try:
                    arbiter.assign(decode_line(line, Assignment))
                except LineError as error:
                    log.error("invalid line from the agent: %s", error)
        finally:
            periodic.cancel()
            arbiter.close()


async def _every_second(arbiter: Arbiter, pipe: asyncio.WriteTransport) -> None:
    """Create missing sockets, and write the used time to standard output if it has changed.

    Nothing is written while the agent has not read the previous report.
    """
    reported: Used = {}
    while True:
        await asyncio.sleep(PERIOD_S)
        arbiter.listen()
        used = arbiter.used()
        if used != reported and not pipe.is_closing() and not pipe.get_write_buffer_size():
            reported = used
            pipe.write(encode_line(used))


def _acquire(lock: int) -> bool:
    """Lock the open file ``lock``. Wait while another arbiter of the node has locked the file.

    Return False if the agent closes standard input during the wait.
    """
    agent = select.poll()
    agent.register(sys.stdin, 0)
    while not agent.poll(0):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            agent.poll(LOCK_RETRY_MS)
        else:
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="gputile.node.arbiter", description="Schedule the time on this node's GPUs."
    )
    parser.add_argument(
        "--lock", type=Path, required=True, help="a file that only one arbiter of the node locks"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # An arbiter that hangs must not keep the lock, for which the next agent's arbiter waits.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        lock = os.open(arguments.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        sys.exit(f"error: the lock {arguments.lock} cannot be opened: {error.strerror}")
    if _acquire(lock):
        asyncio.run(serve())


if __name__ == "__main__":
    main()
