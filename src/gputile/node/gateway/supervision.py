"""Keeps an agent running as the gateway's child, with one end of a pair of sockets."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence

from gputile.node.gateway.gateway import Gateway
from gputile.node.gateway.messages import LINK
from gputile.support.process_supervision import Restarts, end, reap_orphans

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0  # well within the time that the kubelet's calls wait
STEADY_AFTER_S = 60.0
STOP_WITHIN_S = 8.0


async def keep_agent(command: Sequence[str], gateway: Gateway) -> int:
    """Run agents until one leaves by itself; return its exit status.

    One that leaves before it took charge of the node, or without an error, is not started again: another start would
    not remove the reason.
    """
    restarts = Restarts("the agent", first=FIRST_PAUSE_S, longest=LONGEST_PAUSE_S, steady_after=STEADY_AFTER_S)
    while True:
        restarts.start()
        try:
            status = await _run(command, gateway)
            ended = f"ended with status {status}"
        except OSError as error:  # no process or descriptor left, say: that passes, and the kubelet's calls wait
            if not gateway.in_charge:
                raise
            status, ended = 1, f"cannot be started: {error}"
        if status == 0 or not gateway.in_charge:
            return status
        await restarts.wait(ended)
        reap_orphans()


async def _run(command: Sequence[str], gateway: Gateway) -> int:
    ours, theirs = socket.socketpair()

    async def attend() -> None:
        await gateway.attend(*await asyncio.open_connection(sock=ours))

    with theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, pass_fds=(theirs.fileno(),), env=os.environ | {LINK: str(theirs.fileno())}
            )
        except BaseException:
            ours.close()
            raise
    attending = asyncio.get_running_loop().create_task(attend())
    try:
        await asyncio.wait((attending,))
        attending.result()
        async with asyncio.timeout(STOP_WITHIN_S):
            return await process.wait()
    except TimeoutError:
        log.error("the agent has hung up and does not end")
        return -signal.SIGKILL
    finally:
        if process.returncode is None:  # it lets go of what it runs itself, and has somebody to talk to until its end
            await end(process, process.terminate, STOP_WITHIN_S)
        attending.cancel()
        await asyncio.gather(attending, return_exceptions=True)
