"""Puts an agent together with the real API server, the real driver and the files it is configured by."""

import asyncio
import contextlib
import logging
import os
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
from gputile.api.config.v1alpha1 import Configuration, ConfigurationError, load_configuration
from gputile.api.core import Node, Pod
from gputile.api.wellknown import INVENTORY_ANNOTATION
from gputile.device.inventory import Inventory, InventoryError, decode_inventory
from gputile.kube.connection import Connection
from gputile.kube.errors import KubeError
from gputile.kube.events import EventRecorder
from gputile.kube.kubeconfig import Access
from gputile.kube.reflector import Reflector
from gputile.nvml.monitor import NO_INVENTORY, Monitor
from gputile.nvml.probe import Probe

log = logging.getLogger(__name__)

READ_NODE_WITHIN_S = 2.0
LOOK_AT_FILE_EVERY_S = 5.0
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
            _follow(settings.config, agent.configure),
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


async def _follow(path: Path | None, take: Callable[[Configuration], None]) -> None:
    """Take in the configuration whenever its file changes; one that is not valid is left for the one in force."""
    before = _stamp(path)
    while path is not None:
        await asyncio.sleep(LOOK_AT_FILE_EVERY_S)
        now = _stamp(path)
        if now == before:
            continue
        before = now
        try:
            take(_read(path))
        except (ConfigurationError, OSError, ValueError) as error:
            log.error("configuration %s is not taken in: %s", path, error)


async def _stay_small() -> None:
    await asyncio.sleep(SETTLE_AFTER_S)
    memory.settle()
    while True:
        await asyncio.sleep(GIVE_BACK_EVERY_S)
        memory.give_back()


def _read(path: Path) -> Configuration:
    import yaml

    try:
        return load_configuration(yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader))
    except yaml.YAMLError as error:
        raise ConfigurationError(f"not YAML: {error}") from error


def _stamp(path: Path | None) -> tuple[int, int]:
    """Return what changes with a file's content, mounted ConfigMaps included, which change by a symbolic link."""
    try:
        stat = os.stat(path) if path is not None else None  # noqa: PTH116 - follows the link
    except OSError:
        return 0, 0
    return (stat.st_mtime_ns, stat.st_ino) if stat is not None else (0, 0)
