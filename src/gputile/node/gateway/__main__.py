"""Serves the kubelet, and runs the node's agent as a child process.

``python -m gputile.node.gateway OPTIONS -- COMMAND``
"""

import argparse
import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from gputile.node.gateway.gateway import Gateway
from gputile.node.gateway.link import LINK, NodeLock
from gputile.support.log_format import LogFormat, set_up_logging
from gputile.support.process_supervision import Restarts, end, reap_orphans

log = logging.getLogger("gputile.node.gateway")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0  # well within the timeout of the kubelet's calls
STEADY_AFTER_S = 60.0
STOP_WITHIN_S = 8.0


async def keep_agent(command: Sequence[str], gateway: Gateway) -> int:
    """Run agents, one after the other. Return the exit status of the last agent.

    No other agent is started if an agent exits without an error, or before any agent has taken over
    the node. The next agent would do the same.
    """
    restarts = Restarts(
        "the agent", first=FIRST_PAUSE_S, longest=LONGEST_PAUSE_S, steady_after=STEADY_AFTER_S
    )
    while True:
        restarts.start()
        try:
            status = await _run_agent(command, gateway)
            ended = f"ended with status {status}"
        # The error may be temporary, such as a lack of file descriptors. The kubelet's calls wait.
        except OSError as error:
            if not gateway.in_charge:
                raise
            status, ended = 1, f"cannot be started: {error}"
        if status == 0 or not gateway.in_charge:
            return status
        await restarts.wait(ended)
        reap_orphans()


async def _run_agent(command: Sequence[str], gateway: Gateway) -> int:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    with theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, pass_fds=(theirs.fileno(),), env=os.environ | {LINK: str(theirs.fileno())}
            )
        except BaseException:
            writer.close()
            raise
    attending = asyncio.get_running_loop().create_task(gateway.attend(reader, writer))
    try:
        await asyncio.wait((attending,))
        attending.result()
        async with asyncio.timeout(STOP_WITHIN_S):
            return await process.wait()
    except TimeoutError:
        log.error("the agent has closed its connection but does not exit")
        return -signal.SIGKILL
    finally:
        # The agent must end its own children, so the gateway serves the agent until it exits.
        if process.returncode is None:
            await end(process, process.terminate, STOP_WITHIN_S)
        attending.cancel()
        await asyncio.gather(attending, return_exceptions=True)


async def serve(arguments: argparse.Namespace) -> int:
    """Serve until a SIGTERM or SIGINT, or until the last agent exits. Return the exit status."""
    token = secrets.token_hex(8)
    gateway = Gateway(
        arguments.device_plugin_dir,
        arguments.pod_resources_socket,
        NodeLock(arguments.claim_file, token),
    )
    loop = asyncio.get_running_loop()
    serving = loop.create_task(gateway.run())
    agents = loop.create_task(keep_agent([*arguments.command, token], gateway))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agents.cancel)
    gc.collect()
    gc.freeze()
    await asyncio.wait((serving, agents), return_when=asyncio.FIRST_COMPLETED)
    served = serving.done()
    for task in (agents, serving):
        task.cancel()
    status, problem = await asyncio.gather(agents, serving, return_exceptions=True)
    if served:
        log.error("the gateway exits: %s", problem)
        return 1
    if isinstance(status, Exception):  # CancelledError, after a SIGTERM, is not one
        log.error("the agent cannot be run: %s", status)
        return 1
    if not isinstance(status, int):
        return 0
    return status if status >= 0 else 128 - status


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="gputile.node.gateway", description="Serve the kubelet for the node's agent."
    )
    parser.add_argument("--device-plugin-dir", type=Path, required=True)
    parser.add_argument("--pod-resources-socket", type=Path, required=True)
    parser.add_argument(
        "--claim-file",
        type=Path,
        required=True,
        help="the lock file of the node, which contains the token of the gateway that serves it",
    )
    parser.add_argument("--log-format", type=LogFormat, default=LogFormat.JSON)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument(
        "command", nargs="+", help="the agent's command, to which the gateway appends its token"
    )
    arguments = parser.parse_args()
    set_up_logging(arguments.log_format, arguments.verbose)
    sys.exit(asyncio.run(serve(arguments)))


if __name__ == "__main__":
    main()
