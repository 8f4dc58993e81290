"""Serves the kubelet, and runs the agent as its child.

``python -m gputile.node.gateway OPTIONS -- COMMAND``
"""

import argparse
import asyncio
import gc
import logging
import secrets
import signal
import sys
from pathlib import Path

from gputile.node.gateway.gateway import Gateway
from gputile.node.gateway.node_lock import NodeLock
from gputile.node.gateway.supervision import keep_agent
from gputile.support.logs import LogFormat, set_up_logging

log = logging.getLogger("gputile.node.gateway")


async def serve(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGINT or an agent that will not be started again; return the exit status."""
    token = secrets.token_hex(8)
    gateway = Gateway(
        arguments.device_plugin_dir, arguments.pod_resources_socket, NodeLock(arguments.claim_file, token)
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
        log.error("the gateway ends: %s", problem)
        return 1
    if isinstance(status, Exception):  # SIGTERM's is a CancelledError, which is none
        log.error("no agent can be run: %s", status)
        return 1
    if not isinstance(status, int):
        return 0
    return status if status >= 0 else 128 - status


def main() -> None:
    parser = argparse.ArgumentParser(prog="gputile.node.gateway", description="Serve the kubelet for the node's agent.")
    parser.add_argument("--device-plugin-dir", type=Path, required=True)
    parser.add_argument("--pod-resources-socket", type=Path, required=True)
    parser.add_argument("--claim-file", type=Path, required=True, help="who serves the node writes its name there")
    parser.add_argument("--log-format", type=LogFormat, default=LogFormat.JSON)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("command", nargs="+", help="the agent; the claim's token is added to its arguments")
    arguments = parser.parse_args()
    set_up_logging(arguments.log_format, arguments.verbose)
    sys.exit(asyncio.run(serve(arguments)))


if __name__ == "__main__":
    main()
