"""Keeps an agent running as the gateway's child, with one end of a pair of sockets."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Sequence

from gputile.node.gateway.gateway import Gateway
from gputile.node.gateway.messages import LINK

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0  # well within the time that the kubelet's calls wait
STEADY_AFTER_S = 60.0
STOP_WITHIN_S = 8.0


async def keep_agent(command: Sequence[str], gateway: Gateway) -> int:
    """Run agents until one leaves by itself; return its exit status.

    One that leaves before it took charge of the node, or without an error, is not started again: it has a reason that
    another start does not mend.
    """
    loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_S
    while True:
        begin = loop.time()
        try:
            status = await _run(command, gateway)
        except OSError as error:  # no process or descriptor left, say: that passes, and the kubelet's calls wait
            if not gateway.in_charge:
                raise
            log.error("no agent can be started now: %s", error)
            status = 1
        if status == 0 or not gateway.in_charge:
            return status
        pause = FIRST_PAUSE_S if loop.time() - begin > STEADY_AFTER_S else min(2 * pause, LONGEST_PAUSE_S)
        log.error("the agent ended with status %d; again in %s s", status, pause)
        await asyncio.sleep(pause)
        reap_orphans()


def reap_orphans() -> None:
    """Let go of what an agent has left and what has ended since: in a container its orphans are process 1's, ours.

    To be called while no agent runs, whose exit status somebody else waits for.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


async def _run(command: Sequence[str], gateway: Gateway) -> int:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, pass_fds=(theirs.fileno(),), env=os.environ | {LINK: str(theirs.fileno())}
            )
        except BaseException:
            ours.close()
            raise
    attending = asyncio.get_running_loop().create_task(_attend(ours, gateway))
    try:
        await asyncio.wait((attending,))
        attending.result()
        async with asyncio.timeout(STOP_WITHIN_S):
            return await process.wait()
    except TimeoutError:
        log.error("the agent has hung up and does not end")
        return -signal.SIGKILL
    finally:
        await _end(process)  # with somebody to talk to until it has ended
        attending.cancel()
        await asyncio.gather(attending, return_exceptions=True)


async def _attend(link: socket.socket, gateway: Gateway) -> None:
    await gateway.attend(*await asyncio.open_connection(sock=link))


async def _end(process: asyncio.subprocess.Process) -> None:
    """End an agent that is still there, which lets go of what it runs itself."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_WITHIN_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
