"""What is in force on the node, and what the kubelet is told of it."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gputile.api.core import Node
from gputile.api.well_known import INVENTORY_ANNOTATION, WHOLE_GPU, Mode
from gputile.core.devices.inventory import Inventory, encode_inventory
from gputile.node.agent.advertise.device_lists import devices
from gputile.node.agent.advertise.mode_and_unit import ModePlan, plan
from gputile.node.agent.advertise.mps import MpsDaemons
from gputile.node.agent.advertise.node_config import MODE_RESOURCES, EffectiveMode, NodeConfig
from gputile.node.agent.advertise.node_offer import closed, node_config_of, published
from gputile.node.agent.advertise.other_plugin import SOCKET_PATTERNS, other_plugin_evidence
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.cdi_files import CdiFiles
from gputile.node.agent.checkpoint.records import Records, published_before
from gputile.node.agent.kubelet_link import KubeletLink
from gputile.node.gateway.sockets import answers
from gputile.node.nvml.monitor import Observation
from gputile.node.nvml.probe import inventory_of

log = logging.getLogger(__name__)


class AdvertisedState:
    """The node's offer as it stands. ``plan`` is what is in force, ``other_plugin`` who serves the node instead."""

    def __init__(
        self,
        allocation_state: AllocationState,
        records: Records,
        kubelet: KubeletLink,
        mps: MpsDaemons,
        cdi: CdiFiles | None,
        device_plugins: Path,
    ) -> None:
        self.allocation_state = allocation_state
        self.other_plugin = ""
        self.plan = ModePlan(allocation_state.node_config.effective_mode, ())
        self._effective_mode = records.effective_mode
        self._records = records
        self._kubelet = kubelet
        self._mps = mps
        self._cdi = cdi
        self._directory = device_plugins
        self._resources: tuple[str, ...] = ()
        self._mixed = True
        self._unsaved = False

    @property
    def mps_problem(self) -> str:
        """Why mode ``mps`` cannot be served; "" where it can, or another mode is in force."""
        return self._mps.problem if self.plan.effective_mode.mode is Mode.MPS else ""

    def published(self) -> Inventory | None:
        """Return the inventory that the scheduler is to see; None where it must leave the choice to kube-scheduler."""
        inventory = published(self.allocation_state.node_config, self.other_plugin)
        return closed(self.allocation_state.node_config) if inventory is not None and self.plan.closing else inventory

    def shut(self, node: Node) -> bool:
        """Return whether the scheduler binds no more pods here, by what ``node`` says."""
        if published(self.allocation_state.node_config, self.other_plugin) is None:
            return True  # kube-scheduler goes by what the kubelet offers; nothing can be said beforehand
        text = node.metadata.annotations.get(INVENTORY_ANNOTATION)
        return text == encode_inventory(closed(self.allocation_state.node_config))

    def take_over(self) -> None:
        """Go on with what was in force before; as the node was published, where the checkpoint has been lost."""
        node = self.allocation_state.node
        self._effective_mode = self._records.effective_mode
        if self._records.lost and self._effective_mode is None and node is not None:
            self._effective_mode = published_before(node, self.allocation_state.configuration.unit_mib)

    async def renew(self, seen: Observation, *, free: bool = False) -> None:
        """Work out anew what the node offers, and tell the kubelet if it is something else.

        ``free`` says that no pod can be on its way to the node any more: it has been closed for long enough.
        """
        allocation_state, node = self.allocation_state, self.allocation_state.node
        labels = dict(node.metadata.labels) if node else {}
        if node is not None or self._effective_mode is None:
            self.plan = self._planned(seen, labels, free=free)
            if node is not None:
                self._effective_mode = self.plan.effective_mode
        self.other_plugin = self._find_other_plugin(node)
        node_config = node_config_of(
            seen.machine, seen.health, self.plan.effective_mode, self.other_plugin, self.mps_problem
        )
        self._want_daemons(node_config)
        if node is None and self._effective_mode is None:
            node_config = replace(node_config, withheld="the labels of the node are not known yet")
        changed = node_config != allocation_state.node_config
        allocation_state.node_config, allocation_state.labels = node_config, labels
        resources = self._wanted(node_config)
        if resources != self._resources:
            self._resources = resources
            self.announce()
        if changed:
            log.info("mode %s, unit %d MiB in force", node_config.mode.value, node_config.effective_mode.unit_mib)
            if self._cdi is not None:
                self._cdi.refresh(seen.machine)
            self.announce()
            self._unsaved = True
        if self._unsaved:
            self._save_or_later()

    def allocated(self) -> None:
        """Take note that pods got devices."""
        # With one unit the list of IDs stays as it is, whoever holds them.
        unit, mixed = self.allocation_state.node_config.effective_mode.unit_mib, self._mixed
        self._mixed = any(pod_devices.unit_mib != unit for pod_devices in self.allocation_state.device_table)
        if mixed or self._mixed:
            self.announce()

    def announce(self) -> None:
        """Tell the kubelet of devices that have changed."""
        node_config, device_table = self.allocation_state.node_config, self.allocation_state.device_table
        self._kubelet.offer({resource: devices(node_config, device_table, resource) for resource in self._resources})

    def save(self) -> None:
        """Write the checkpoint."""
        self._records.save(self.allocation_state, self._effective_mode, self._resources)

    def recover(self) -> None:
        """Take in what the kubelet's checkpoint says."""
        self._records.recover(self.allocation_state)

    def owners(self, resource: str, ids: Iterable[str]) -> frozenset[tuple[str, str]] | None:
        """Return the UID and name of each container for which the kubelet's checkpoint has just these IDs.

        None where it cannot be read.
        """
        return self._records.owners(resource, ids)

    def _save_or_later(self) -> None:
        try:
            self.save()
            self._unsaved = False
        except OSError as error:  # a disk that is full keeps no news from the kubelet
            log.error("the checkpoint cannot be written, and is tried again: %s", error)

    def _planned(self, seen: Observation, labels: Mapping[str, str], *, free: bool) -> ModePlan:
        allocation_state = self.allocation_state
        holders = {pod_devices.key for pod_devices in allocation_state.device_table}
        gpu_pods = {pod.key for pod in allocation_state.pods.values() if pod.alive and (pod.request or pod.allocation)}
        gpus = inventory_of(seen.machine, seen.health).gpus
        return plan(
            self._effective_mode, labels, allocation_state.configuration, gpus, sorted(holders | gpu_pods), free=free
        )

    def _want_daemons(self, node_config: NodeConfig) -> None:
        if node_config.mode is not Mode.MPS or self.other_plugin:
            self._mps.want(())
            return
        single = {(gpu.uuid,) for gpu in node_config.inventory.gpus if gpu.healthy}
        several = {
            tuple(pod_devices.gpus[index] for index in sorted(pod_devices.gpus))
            for pod_devices in self.allocation_state.device_table
            if len(pod_devices.gpus) > 1
        }
        self._mps.want(single | several)

    def _wanted(self, node_config: NodeConfig) -> tuple[str, ...]:
        """Return each resource that is to be known here, be it with 0."""
        wanted = {*MODE_RESOURCES, *(instance.resource for instance in node_config.instances)}
        if self.other_plugin:
            wanted.discard(WHOLE_GPU)
        return tuple(sorted(wanted))

    def _find_other_plugin(self, node: Node | None) -> str:
        found = (path for pattern in SOCKET_PATTERNS for path in self._directory.glob(pattern))
        served = WHOLE_GPU in self._records.saved.registered or WHOLE_GPU in self._resources
        if node is not None and INVENTORY_ANNOTATION in node.metadata.annotations:
            served = True
        pods = (known.pod for known in self.allocation_state.pods.values())
        return other_plugin_evidence((path.name for path in found if answers(path)), pods, node, served_before=served)


def starting_node_config(seen: Observation, effective_mode: EffectiveMode | None, unit_mib: int) -> NodeConfig:
    """Return what is offered before the node's labels are known: what was ``effective_mode``, or the exclusive mode."""
    return node_config_of(seen.machine, seen.health, effective_mode or EffectiveMode(Mode.EXCLUSIVE, unit_mib), "", "")
