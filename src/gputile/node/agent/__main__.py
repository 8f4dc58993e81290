"""Runs the agent. The gateway starts this module as its child process.

``python -m gputile.node.agent SETTINGS TOKEN``

An agent runs on every GPU node and is mostly idle, so it returns unused memory to the kernel. After
the imports, the allocator keeps 12 MiB of freed memory, and after many admissions it keeps more.
malloc_trim(3) of glibc returns this memory. Other C libraries do not need the call.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from gputile.api.config.section import ConfigurationError
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.conversion import ConversionError, decode
from gputile.api.core import Node, Pod
from gputile.api.well_known import INVENTORY_ANNOTATION
from gputile.api.workloads import PodOnNode
from gputile.core.devices.inventory import Inventory, InventoryError, decode_inventory
from gputile.kube.client import Connection
from gputile.kube.config import Access, load_access
from gputile.kube.errors import ConfigError, KubeError
from gputile.kube.events import EventRecorder
from gputile.kube.reflector import Reflector, ReflectorSettings, export_reflectors
from gputile.node.agent.advertise import Host
from gputile.node.agent.agent import Agent
from gputile.node.agent.api_server import NodeApi
from gputile.node.agent.files.allocation_files import StateError
from gputile.node.agent.kubelet import GatewayGoneError
from gputile.node.agent.monitoring import monitoring
from gputile.node.agent.mps import MpsDaemons
from gputile.node.agent.settings import MPS_DIRECTORY, NODE, AgentSettings, decode_settings
from gputile.node.gateway.link import FROM_GATEWAY, LINK, MessageChannel, NodeLock
from gputile.node.nvml.gpu_monitor import NO_INVENTORY, GpuMonitor
from gputile.node.nvml.nvml_probe import NvmlSession
from gputile.support.config_file import ConfigFile, read
from gputile.support.listening import PortError
from gputile.support.log_format import set_up_logging

log = logging.getLogger(__name__)

READ_NODE_WITHIN_S = 2.0
FREEZE_AFTER_S = 2.0
TRIM_EVERY_S = 30.0
_M_ARENA_MAX = -8  # mallopt(3)


async def serve(
    access: Access,
    settings: AgentSettings,
    configuration: Configuration,
    open_session: Callable[[], NvmlSession],
    link: socket.socket,
    token: str,
) -> int:
    """Run until SIGTERM or SIGINT, or until the gateway disconnects. Return the exit status.

    ``link`` is the agent's end of the connection to the gateway. ``token`` identifies the agent and
    its gateway in the lock on the node.
    """
    name, status = settings.node_name, 0
    # Otherwise each thread of gRPC would have its own malloc arena.
    _libc("mallopt", _M_ARENA_MAX, 1)
    gateway = MessageChannel(*await asyncio.open_connection(sock=link), FROM_GATEWAY)
    async with contextlib.AsyncExitStack() as stack:
        connection = await stack.enter_async_context(Connection(access))
        events = EventRecorder(connection, f"gputile-agent/{name}")
        cluster = NodeApi(connection, events, name)
        monitor = GpuMonitor(open_session, await _published(connection, name))
        node_lock = NodeLock(settings.host_paths.claim, token)
        mps = MpsDaemons(settings.host_paths.state / MPS_DIRECTORY)
        host = Host(name, settings.host_paths, monitor, mps)
        agent = Agent(host, cluster, configuration, gateway, node_lock)
        if settings.health_port:
            stack.enter_context(
                monitoring(
                    settings.health_port, agent.metrics.registry, agent.not_healthy, agent.not_ready
                )
            )
        of_node = ReflectorSettings({"fieldSelector": f"metadata.name={name}"})
        of_pods = ReflectorSettings({"fieldSelector": f"spec.nodeName={name}"})
        nodes = Reflector(connection, "/api/v1/nodes", Node, agent.news.on_node, settings=of_node)
        pods: Reflector[Pod] = Reflector(
            connection, "/api/v1/pods", PodOnNode, agent.news.on_pods, settings=of_pods
        )
        export_reflectors(agent.metrics.registry, "agent", {"nodes": nodes, "pods": pods})
        work = asyncio.create_task(
            _together(
                agent.run(),
                nodes.run(),
                pods.run(),
                events.run(),
                ConfigFile(settings.config, configuration, agent.news.configure).run(),
                _keep_heap_small(),
            )
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            pass
        except BaseExceptionGroup as group:
            if group.subgroup(GatewayGoneError) is None:
                raise
            log.error("the agent ends: the gateway has closed the connection")
            status = 1
    return status


async def _published(connection: Connection, name: str) -> Inventory:
    """Return the inventory that the previous agent published.

    With it, GPUs keep their indices, and unhealthy GPUs start as unhealthy.
    """
    try:
        async with asyncio.timeout(READ_NODE_WITHIN_S):
            body = await connection.get(f"/api/v1/nodes/{name}")
        node = decode(body, NODE)
        return decode_inventory(node.metadata.annotations[INVENTORY_ANNOTATION])
    except KeyError:
        return NO_INVENTORY
    except (KubeError, TimeoutError, InventoryError, ConversionError) as error:
        log.warning("the inventory of the previous agent cannot be read: %s", error)
        return NO_INVENTORY


async def _together(*work: Coroutine[Any, Any, object]) -> None:
    """Run all coroutines concurrently. Return when all have ended and cleaned up."""
    async with asyncio.TaskGroup() as tasks:
        for each in work:
            tasks.create_task(each)


async def _keep_heap_small() -> None:
    """Exclude existing objects from garbage collection. Then regularly return freed memory."""
    await asyncio.sleep(FREEZE_AFTER_S)
    gc.collect()
    gc.freeze()
    while True:
        _libc("malloc_trim", 0)
        await asyncio.sleep(TRIM_EVERY_S)


def _libc(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)


def main() -> None:
    settings, token = decode_settings(sys.argv[1]), sys.argv[2]
    link = socket.socket(fileno=int(os.environ.pop(LINK)))
    link.set_inheritable(False)
    set_up_logging(settings.log_format, settings.verbose)
    try:
        configuration = read(settings.config) if settings.config else Configuration()
        access = load_access(settings.kubeconfig, settings.context)
    except (ConfigurationError, ConfigError) as error:
        sys.exit(f"error: {error}")
    try:
        status = asyncio.run(serve(access, settings, configuration, NvmlSession, link, token))
    except (PortError, StateError) as error:
        sys.exit(f"error: {error}")
    sys.exit(status)


if __name__ == "__main__":
    main()
