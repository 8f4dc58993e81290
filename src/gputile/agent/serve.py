"""Puts an agent together with the real API server, the real driver and the files it is configured by."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gputile.agent import memory
from gputile.agent.cluster import KubeCluster
from gputile.agent.kubelet import GatewayGoneError
from gputile.agent.monitoring import monitoring_app, start_monitoring
from gputile.agent.service import Agent
from gputile.agent.surroundings import Places
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.wellknown import INVENTORY_ANNOTATION
from gputile.device.inventory import Inventory, InventoryError, decode_inventory
from gputile.gateway.claim import Claim
from gputile.gateway.messages import to_gateway
from gputile.kube.configfile import follow
from gputile.kube.connection import Connection
from gputile.kube.errors import KubeError
from gputile.kube.events import EventRecorder
from gputile.kube.kubeconfig import Access
from gputile.kube.reflector import Reflector
from gputile.logs import LogFormat
from gputile.nvml.monitor import NO_INVENTORY, Monitor
from gputile.nvml.probe import Probe

log = logging.getLogger(__name__)

READ_NODE_WITHIN_S = 2.0
SETTLE_AFTER_S = 2.0
GIVE_BACK_EVERY_S = 30.0


class Settings(msgspec.Struct, frozen=True):
    """What the command line says. ``config`` is followed while it changes; ``metrics_port`` 0 is none."""

    node_name: str
    places: Places
    config: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    metrics_port: int = 0
    log_format: LogFormat = LogFormat.JSON
    verbose: bool = False


def encode_settings(settings: Settings) -> str:
    """Return what ``decode_settings`` reads."""
    return msgspec.json.encode(settings, enc_hook=str).decode()


def decode_settings(text: str) -> Settings:
    """Return the settings, as the process has them that starts the agent.

    Raises:
        msgspec.MsgspecError: they are not such settings.
    """
    return msgspec.json.decode(text, type=Settings, dec_hook=lambda wanted, value: wanted(value))


@dataclass(frozen=True, slots=True)
class Behind:
    """The gateway that the agent is behind: the agent's end of their link, and the token of their claim."""

    link: socket.socket
    token: str


async def serve(
    access: Access,
    settings: Settings,
    configuration: Configuration,
    open_probe: Callable[[], Probe],
    behind: Behind,
) -> int:
    """Run the agent until SIGTERM or SIGINT, or until its gateway has gone; return the exit status."""
    name, status = settings.node_name, 0
    memory.limit_arenas()
    gateway = to_gateway(*await asyncio.open_connection(sock=behind.link))
    async with Connection(access) as connection:
        events = EventRecorder(connection, f"gputile-agent/{name}")
        cluster = KubeCluster(connection, events, name)
        eyes = Monitor(open_probe, await _published(connection, name))
        claim = Claim(settings.places.claim, behind.token)
        agent = Agent(name, settings.places, eyes, cluster, configuration, gateway, claim)
        if settings.metrics_port:
            app = monitoring_app(agent.metrics.registry, agent.sick, agent.unready)
            start_monitoring(settings.metrics_port, app)
        nodes = Reflector(
            connection, "/api/v1/nodes", Node, agent.on_node, query={"fieldSelector": f"metadata.name={name}"}
        )
        pods = Reflector(
            connection, "/api/v1/pods", Pod, agent.on_pods, query={"fieldSelector": f"spec.nodeName={name}"}
        )
        work = asyncio.create_task(
            _together(
                agent.run(),
                nodes.run(),
                pods.run(),
                events.run(),
                follow(settings.config, configuration, agent.configure),
                _stay_small(),
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
            log.error("the gateway has hung up; the agent ends")
            status = 1
    return status


async def _published(connection: Connection, name: str) -> Inventory:
    """Return what the agent before this one published: cards keep their indices, sick ones stay sick."""
    try:
        async with asyncio.timeout(READ_NODE_WITHIN_S):
            body = await connection.get(f"/api/v1/nodes/{name}")
        node = msgspec.json.decode(body, type=Node)
        return decode_inventory(node.metadata.annotations[INVENTORY_ANNOTATION])
    except KeyError:
        return NO_INVENTORY
    except (KubeError, TimeoutError, InventoryError, msgspec.MsgspecError) as error:
        log.warning("the inventory published before is not known: %s", error)
        return NO_INVENTORY


async def _together(*work: Coroutine[Any, Any, object]) -> None:
    """Do all of it; return when all of it has ended, and cleaned up after itself."""
    async with asyncio.TaskGroup() as tasks:
        for each in work:
            tasks.create_task(each)


async def _stay_small() -> None:
    await asyncio.sleep(SETTLE_AFTER_S)
    memory.settle()
    while True:
        await asyncio.sleep(GIVE_BACK_EVERY_S)
        memory.give_back()
