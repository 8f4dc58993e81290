"""Puts an agent together with the real API server, the real driver and the files it is configured by."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gputile.agent import memory
from gputile.agent.cluster import KubeCluster
from gputile.agent.monitoring import monitoring_app, start_monitoring
from gputile.agent.service import Agent
from gputile.agent.surroundings import Places
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.wellknown import INVENTORY_ANNOTATION
from gputile.device.inventory import Inventory, InventoryError, decode_inventory
from gputile.kube.configfile import follow
from gputile.kube.connection import Connection
from gputile.kube.errors import KubeError
from gputile.kube.events import EventRecorder
from gputile.kube.kubeconfig import Access
from gputile.kube.reflector import Reflector
from gputile.nvml.monitor import NO_INVENTORY, Monitor
from gputile.nvml.probe import Probe

log = logging.getLogger(__name__)

READ_NODE_WITHIN_S = 2.0
SETTLE_AFTER_S = 2.0
GIVE_BACK_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says. ``config`` is followed while it changes; ``metrics_port`` 0 is none."""

    node_name: str
    places: Places
    config: Path | None = None
    metrics_port: int = 0


async def serve(
    access: Access,
    settings: Settings,
    configuration: Configuration,
    open_probe: Callable[[], Probe],
) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    name = settings.node_name
    memory.limit_arenas()
    async with Connection(access) as connection:
        events = EventRecorder(connection, f"gputile-agent/{name}")
        cluster = KubeCluster(connection, events, name)
        eyes = Monitor(open_probe, await _published(connection, name))
        agent = Agent(name, settings.places, eyes, cluster, configuration)
        if settings.metrics_port:
            app = monitoring_app(agent.metrics.registry, agent.sick, agent.unready)
            start_monitoring(settings.metrics_port, app)
        nodes = Reflector(
            connection, "/api/v1/nodes", Node, agent.on_node, query={"fieldSelector": f"metadata.name={name}"}
        )
        pods = Reflector(
            connection, "/api/v1/pods", Pod, agent.on_pods, query={"fieldSelector": f"spec.nodeName={name}"}
        )
        work = asyncio.gather(
            agent.run(),
            nodes.run(),
            pods.run(),
            events.run(),
            follow(settings.config, configuration, agent.configure),
            _stay_small(),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await work


async def _published(connection: Connection, name: str) -> Inventory:
    """Return what the agent before this one published: cards keep their indices, sick ones stay sick."""
    try:
        body = await asyncio.wait_for(connection.get(f"/api/v1/nodes/{name}"), READ_NODE_WITHIN_S)
        node = msgspec.json.decode(body, type=Node)
        return decode_inventory(node.metadata.annotations[INVENTORY_ANNOTATION])
    except KeyError:
        return NO_INVENTORY
    except (KubeError, TimeoutError, InventoryError, msgspec.MsgspecError) as error:
        log.warning("the inventory published before is not known: %s", error)
        return NO_INVENTORY


async def _stay_small() -> None:
    await asyncio.sleep(SETTLE_AFTER_S)
    memory.settle()
    while True:
        await asyncio.sleep(GIVE_BACK_EVERY_S)
        memory.give_back()
