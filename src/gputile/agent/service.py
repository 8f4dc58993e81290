"""The agent of one node: the loops that keep machine, kubelet and API server in step, around the core that decides."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from gputile.agent.admission import Admission
from gputile.agent.adopt import adopt, with_part
from gputile.agent.cdifiles import CdiFiles
from gputile.agent.checkpoint import Checkpoint
from gputile.agent.cluster import Cluster
from gputile.agent.corrections import Corrector
from gputile.agent.desk import MPS_DIRECTORY, AdmissionDesk
from gputile.agent.foreign import SOCKET_PATTERNS, foreign_condition, foreign_plugin
from gputile.agent.holdings import Holdings
from gputile.agent.kubeletcheckpoint import FILE_NAME, recover
from gputile.agent.labels import node_labels
from gputile.agent.metrics import Metrics
from gputile.agent.modes import Plan, plan
from gputile.agent.mps import MpsDaemons
from gputile.agent.offer import mig_condition, mps_condition, published, setup_of
from gputile.agent.plugin import Plugin
from gputile.agent.podbook import apply_pod, remove_pod, replace_pods
from gputile.agent.podresources import PodResources
from gputile.agent.publish import Wanted, gpu_conditions, node_patch
from gputile.agent.reconciler import reconcile
from gputile.agent.registration import Registrar
from gputile.agent.setup import MODE_RESOURCES, InForce, Setup
from gputile.agent.sockets import answers
from gputile.agent.store import Store
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, ObjectReference, Pod
from gputile.api.wellknown import INVENTORY_ANNOTATION, WHOLE_GPU, Mode
from gputile.device.inventory import InventoryError, decode_inventory, encode_inventory
from gputile.kube.decoding import Applied, Deleted, Event, Replaced
from gputile.kube.errors import KubeError
from gputile.nvml.monitor import Observation
from gputile.nvml.probe import inventory_of

log = logging.getLogger(__name__)

SYNC_WITHIN_S = 2.0  # how long registration waits for the API server's pods; admission asks for single ones later
RECONCILE_EVERY_S = 10.0
RECONCILE_APART_S = 0.3
LIST_WITHIN_S = 2.0
SETTLED_AFTER_S = 10.0  # a kubelet that has just started lists its pods one after the other
PROBE_STEP_S = 5.0


class Eyes(Protocol):
    """What watches the machine's GPUs: ``gputile.nvml.monitor.Monitor``, or a test's own."""

    seen: Observation

    def step(self, seconds: float) -> bool:
        """Watch for so many seconds, in a thread; return whether anything changed."""

    def close(self) -> None:
        """Stop watching."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are.

    ``host_state`` is the state directory as the host sees it, for mounts into containers. With a ``cdi`` directory
    containers get their devices by CDI too. ``root`` is where the agent sees the host's file system.
    """

    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    state: Path = Path("/var/lib/gputile")
    host_state: Path | None = None
    cdi: Path | None = None
    root: Path = Path("/")


@dataclass(slots=True)
class _Kick:
    """A wish that something be done soon; wishes add up to one."""

    event: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, within: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.event.wait(), within)
        self.event.clear()


class Agent:
    """One node's agent. Feed it with ``on_pods`` and ``on_node``; ``run`` until cancelled."""

    def __init__(
        self,
        node_name: str,
        places: Places,
        eyes: Eyes,
        cluster: Cluster,
        configuration: Configuration,
        mps: MpsDaemons | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.node: Node | None = None
        self._node_name = node_name
        self._places = places
        self._eyes = eyes
        self._cluster = cluster
        self._mps = mps or MpsDaemons(places.state / MPS_DIRECTORY)
        self._store = Store(places.state)
        saved = self._store.load()
        self._lost = saved is None
        self._saved = saved or Checkpoint()
        self._in_force = _in_force(self._saved)
        self._synced, self._node_seen = asyncio.Event(), asyncio.Event()
        self._reconcile, self._publish = _Kick(), _Kick()
        unit = self._in_force.unit_mib if self._in_force else configuration.unit_mib
        nothing = self._in_force or InForce(Mode.EXCLUSIVE, unit)
        setup = setup_of(eyes.seen.machine, eyes.seen.health, nothing, "", "")
        self.admission = Admission(configuration, setup, Holdings(self._saved.holdings))
        self._plan = Plan(nothing, ())
        self._foreign, self._mixed, self._caught_up = "", True, False
        self._cdi = CdiFiles(places.cdi, places.root) if places.cdi is not None else None
        self._podresources = PodResources(places.pod_resources)
        self.desk = AdmissionDesk(
            self.admission,
            self._store,
            places.host_state or places.state,
            self._podresources,
            cluster,
            self.metrics,
            node_name,
            self._save,
            self._allocated,
            self._cdi,
        )
        self._plugins: dict[str, Plugin] = {}
        self.registrar = Registrar(places.device_plugins, lambda: self._store.mine)
        self._corrector = Corrector(cluster, self.metrics, self.admission)
        self._worker = ThreadPoolExecutor(1, "gpu-probe")

    # -- what the API server says

    def on_pods(self, event: Event[Pod]) -> None:
        """Take in news of the pods that are bound to this node."""
        book, configuration = self.admission.pods, self.admission.configuration
        match event:
            case Applied(pod):
                apply_pod(book, pod, configuration)
            case Deleted(pod):
                remove_pod(book, pod)
            case Replaced(pods):
                replace_pods(book, pods, configuration)
                self._synced.set()
            case _:
                return
        self._reconcile.event.set()

    def on_node(self, event: Event[Node]) -> None:
        """Take in news of this node."""
        match event:
            case Applied(node):
                self.node = node
            case Replaced(nodes):
                self.node = next((node for node in nodes if node.metadata.name == self._node_name), None)
            case _:
                return
        if self.node is not None:
            self._node_seen.set()
        self._reconcile.event.set()
        self._publish.event.set()

    def configure(self, configuration: Configuration) -> None:
        """Take in a new configuration."""
        self.admission.configuration = configuration
        pods = [known.pod for known in self.admission.pods.values()]
        replace_pods(self.admission.pods, pods, configuration)
        self._reconcile.event.set()

    # -- loops

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            await self._look_at_machine(0.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SYNC_WITHIN_S):
                    await self._synced.wait()
                    await self._node_seen.wait()
            self._store.claim()
            await self.registrar.sweep()
            self._recover_holdings()
            if self._lost and self._in_force is None and self.node is not None:
                self._in_force = _published_before(self.node, self.admission)
            await self._replan()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.registrar.run())
                tasks.create_task(self._forever(self._watch_machine))
                tasks.create_task(self._forever(self._compare))
                tasks.create_task(self._forever(self._tell_node))
        finally:
            await self._mps.stop()
            await self._podresources.close()
            self._worker.shutdown(wait=False, cancel_futures=True)
            self._eyes.close()

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except (KubeError, OSError) as error:
                log.warning("%s", error)
                await asyncio.sleep(1.0)

    async def _look_at_machine(self, seconds: float) -> bool:
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._eyes.step, seconds)

    async def _watch_machine(self) -> None:
        if await self._look_at_machine(PROBE_STEP_S):
            await self._replan()

    async def _compare(self) -> None:
        await self._reconcile.wait(RECONCILE_EVERY_S)
        if not self._store.mine:
            return
        listing = await self._podresources.list(LIST_WITHIN_S)
        await self._replan()
        if not self._caught_up and self.registrar.registered.is_set():
            self._recover_holdings()
            self._caught_up = True
        if listing is None:
            return
        admission, before = self.admission, list(self.admission.holdings)
        settled = asyncio.get_running_loop().time() - self.registrar.epoch > SETTLED_AFTER_S
        synced = self._synced.is_set()
        if synced:
            adopt(listing, admission.pods, admission.holdings, admission.setup, time.time_ns())
        found = reconcile(
            admission.pods.values(),
            admission.holdings,
            listing,
            admission.setup,
            time.time_ns(),
            synced=synced,
            settled=settled,
        )
        await self._corrector.carry_out(found)
        if list(admission.holdings) != before:
            self._save()
            self._announce()
            await self._replan()
        self._store.keep_only(part.directory for holding in admission.holdings for part in holding.parts)
        self.metrics.holdings.set(len(admission.holdings))
        await asyncio.sleep(RECONCILE_APART_S)

    async def _tell_node(self) -> None:
        await self._publish.wait(60.0)
        node, seen = self.node, self._eyes.seen
        if node is None or not self._store.mine:
            return
        inventory = published(self.admission.setup, self._foreign)
        in_force = self._plan.in_force
        wanted = Wanted(
            labels=node_labels(self.admission.setup.inventory.cards),
            inventory=encode_inventory(inventory) if inventory is not None else None,
            conditions=(
                *gpu_conditions(seen.machine, seen.health),
                *self._plan.conditions,
                foreign_condition(self._foreign),
                mig_condition(seen.machine, in_force),
                mps_condition(in_force, self._mps.problem if in_force.mode is Mode.MPS else ""),
            ),
        )
        self._say_what_is_new(node, wanted)
        patch = node_patch(node, wanted, datetime.now(UTC))
        if patch is not None:
            try:
                await self._cluster.patch_node(patch)
            except KubeError:
                self._publish.event.set()
                raise
            finally:
                await asyncio.sleep(RECONCILE_APART_S)

    # -- what is in force

    async def _replan(self) -> None:
        """Work out anew what the node offers, and tell the kubelet if it is something else."""
        seen, labels = self._eyes.seen, dict(self.node.metadata.labels) if self.node else {}
        admission = self.admission
        if self.node is not None or self._in_force is None:
            holders = {holding.key for holding in admission.holdings}
            gpu_pods = {pod.key for pod in admission.pods.values() if pod.alive and (pod.request or pod.allocation)}
            cards = inventory_of(seen.machine, seen.health).cards
            configured = admission.configuration.unit_mib
            self._plan = plan(self._in_force, labels, configured, cards, sorted(holders | gpu_pods))
            if self.node is not None:
                self._in_force = self._plan.in_force
        self._foreign = self._find_foreign()
        problem = self._mps.problem if self._plan.in_force.mode is Mode.MPS else ""
        setup = setup_of(seen.machine, seen.health, self._plan.in_force, self._foreign, problem)
        serving = self._plan.in_force.mode is Mode.MPS and not self._foreign
        self._mps.want(card.uuid for card in setup.inventory.cards if serving and card.healthy)
        if self.node is None and self._in_force is None:
            setup = replace(setup, withheld="the labels of the node are not known yet")
        changed = setup != admission.setup
        admission.setup, admission.labels = setup, labels
        await self._provide(setup)
        if changed and self._cdi is not None:
            self._cdi.refresh(seen.machine)
        if changed:
            log.info("mode %s, unit %d MiB in force", setup.mode.value, setup.in_force.unit_mib)
            self._save()
            self._announce()
        self._publish.event.set()

    async def _provide(self, setup: Setup) -> None:
        """Have a plugin for each resource that is to be known here, be it with 0."""
        wanted = {*MODE_RESOURCES, *(instance.resource for instance in setup.instances)}
        if self._foreign:
            wanted.discard(WHOLE_GPU)
        for resource in self._plugins.keys() - wanted:
            del self._plugins[resource]
            await self.registrar.remove(resource)
        for resource in sorted(wanted - self._plugins.keys()):
            self._plugins[resource] = Plugin(resource, self._places.device_plugins, self.desk)
            await self.registrar.add(self._plugins[resource])

    def _find_foreign(self) -> str:
        directory = self._places.device_plugins
        found = (path for pattern in SOCKET_PATTERNS for path in directory.glob(pattern))
        served = WHOLE_GPU in self._saved.registered or WHOLE_GPU in self._plugins
        if self.node is not None and INVENTORY_ANNOTATION in self.node.metadata.annotations:
            served = True
        pods = (known.pod for known in self.admission.pods.values())
        return foreign_plugin((path.name for path in found if answers(path)), pods, self.node, served_before=served)

    # -- what is written down

    def _allocated(self) -> None:
        # With one unit the list of IDs stays as it is, whoever holds them.
        unit, mixed = self.admission.setup.in_force.unit_mib, self._mixed
        self._mixed = any(holding.unit_mib != unit for holding in self.admission.holdings)
        if mixed or self._mixed:
            self._announce()
        self._reconcile.event.set()

    def _announce(self) -> None:
        for plugin in self._plugins.values():
            plugin.announce()

    def _save(self) -> None:
        in_force = self._in_force
        self._store.save(
            Checkpoint(
                holdings=tuple(self.admission.holdings),
                mode=in_force.mode.value if in_force else "",
                unit_mib=in_force.unit_mib if in_force else 0,
                sharing=self._plan.in_force.sharing,
                replicas=self._plan.in_force.replicas,
                registered=tuple(sorted({*self._plugins, *self._saved.registered})),
            )
        )

    def _recover_holdings(self) -> None:
        """Read from the kubelet's checkpoint what was lost with the agent's own, or answered by the agent before."""
        with contextlib.suppress(OSError):
            text = (self._places.device_plugins / FILE_NAME).read_bytes()
            holdings, setup = self.admission.holdings, self.admission.setup
            pods = {pod.uid: pod for pod in self.admission.pods.values()}
            for holding in recover(text, pods, setup, time.time_ns()):
                known = holdings.get(holding.uid) or msgspec.structs.replace(holding, parts=())
                for part in holding.parts:
                    if known.part(part.container, part.resource) is None:
                        known = with_part(known, part, setup)
                holdings.put(known)

    def _say_what_is_new(self, node: Node, wanted: Wanted) -> None:
        """Put an event beside each condition that turns bad or says something new."""
        before = {condition.type: condition for condition in node.status.conditions}
        about = ObjectReference(kind="Node", name=node.metadata.name, uid=node.metadata.uid, api_version="v1")
        for condition in wanted.conditions:
            old = before.get(condition.type)
            if condition.status == "True" and (old is None or old.message != condition.message):
                self._cluster.record(about, condition.reason, condition.message, "Warning")
            elif condition.status == "False" and old is not None and old.status == "True":
                self._cluster.record(about, condition.reason, condition.message)


def _in_force(saved: Checkpoint) -> InForce | None:
    if not saved.mode:
        return None
    return InForce(Mode(saved.mode), saved.unit_mib, saved.sharing, saved.replicas)


def _published_before(node: Node, admission: Admission) -> InForce | None:
    """Return the mode that the agent before this one published, for one that has lost its checkpoint."""
    text: Mapping[str, str] = node.metadata.annotations
    try:
        inventory = decode_inventory(text[INVENTORY_ANNOTATION])
        return InForce(Mode(inventory.mode), inventory.unit_mib or admission.configuration.unit_mib)
    except (KeyError, InventoryError, ValueError):
        return None
