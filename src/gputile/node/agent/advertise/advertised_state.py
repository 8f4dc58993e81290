"""What is in force on the node, and what the kubelet is told of it."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gputile.api.core import Node
from gputile.api.well_known import INVENTORY_ANNOTATION, WHOLE_GPU, Mode
from gputile.core.devices.inventory import Inventory, encode_inventory
from gputile.node.agent.advertise.device_lists import devices
from gputile.node.agent.advertise.mode_and_unit import ModePlan, plan
from gputile.node.agent.advertise.mps import MpsDaemons
from gputile.node.agent.advertise.node_config import MODE_RESOURCES, EffectiveMode, NodeConfig
from gputile.node.agent.advertise.node_offer import closed, published, setup_of
from gputile.node.agent.advertise.other_plugin import SOCKET_PATTERNS, foreign_plugin
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.cdi_files import CdiFiles
from gputile.node.agent.checkpoint.records import Records, published_before
from gputile.node.agent.gateway_link import KubeletLink
from gputile.node.gateway.sockets import answers
from gputile.node.nvml.monitor import Observation
from gputile.node.nvml.probe import inventory_of

log = logging.getLogger(__name__)


class AdvertisedState:
    """The node's offer as it stands. ``plan`` is what is in force, ``foreign`` who serves the node instead."""

    def __init__(
        self,
        admission: AllocationState,
        records: Records,
        kubelet: KubeletLink,
        mps: MpsDaemons,
        cdi: CdiFiles | None,
        device_plugins: Path,
    ) -> None:
        self.admission = admission
        self.foreign = ""
        self.plan = ModePlan(admission.setup.in_force, ())
        self._in_force = records.in_force
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
        return self._mps.problem if self.plan.in_force.mode is Mode.MPS else ""

    def published(self) -> Inventory | None:
        """Return the inventory that the scheduler is to see; None where it must leave the choice to kube-scheduler."""
        inventory = published(self.admission.setup, self.foreign)
        return closed(self.admission.setup) if inventory is not None and self.plan.closing else inventory

    def shut(self, node: Node) -> bool:
        """Return whether the scheduler binds no more pods here, by what ``node`` says."""
        if published(self.admission.setup, self.foreign) is None:
            return True  # kube-scheduler goes by what the kubelet offers; nothing can be said beforehand
        text = node.metadata.annotations.get(INVENTORY_ANNOTATION)
        return text == encode_inventory(closed(self.admission.setup))

    def take_over(self) -> None:
        """Go on with what was in force before; as the node was published, where the checkpoint has been lost."""
        node = self.admission.node
        self._in_force = self._records.in_force
        if self._records.lost and self._in_force is None and node is not None:
            self._in_force = published_before(node, self.admission.configuration.unit_mib)

    async def renew(self, seen: Observation, *, free: bool = False) -> None:
        """Work out anew what the node offers, and tell the kubelet if it is something else.

        ``free`` says that no pod can be on its way to the node any more: it has been closed for long enough.
        """
        admission, node = self.admission, self.admission.node
        labels = dict(node.metadata.labels) if node else {}
        if node is not None or self._in_force is None:
            self.plan = self._planned(seen, labels, free=free)
            if node is not None:
                self._in_force = self.plan.in_force
        self.foreign = self._find_foreign(node)
        setup = setup_of(seen.machine, seen.health, self.plan.in_force, self.foreign, self.mps_problem)
        self._want_daemons(setup)
        if node is None and self._in_force is None:
            setup = replace(setup, withheld="the labels of the node are not known yet")
        changed = setup != admission.setup
        admission.setup, admission.labels = setup, labels
        resources = self._wanted(setup)
        if resources != self._resources:
            self._resources = resources
            self.announce()
        if changed:
            log.info("mode %s, unit %d MiB in force", setup.mode.value, setup.in_force.unit_mib)
            if self._cdi is not None:
                self._cdi.refresh(seen.machine)
            self.announce()
            self._unsaved = True
        if self._unsaved:
            self._save_or_later()

    def allocated(self) -> None:
        """Take note that pods got devices."""
        # With one unit the list of IDs stays as it is, whoever holds them.
        unit, mixed = self.admission.setup.in_force.unit_mib, self._mixed
        self._mixed = any(holding.unit_mib != unit for holding in self.admission.holdings)
        if mixed or self._mixed:
            self.announce()

    def announce(self) -> None:
        """Tell the kubelet of devices that have changed."""
        setup, holdings = self.admission.setup, self.admission.holdings
        self._kubelet.offer({resource: devices(setup, holdings, resource) for resource in self._resources})

    def save(self) -> None:
        """Write the checkpoint."""
        self._records.save(self.admission, self._in_force, self._resources)

    def recover(self) -> None:
        """Take in what the kubelet's checkpoint says."""
        self._records.recover(self.admission)

    def _save_or_later(self) -> None:
        try:
            self.save()
            self._unsaved = False
        except OSError as error:  # a disk that is full keeps no news from the kubelet
            log.error("the checkpoint cannot be written, and is tried again: %s", error)

    def _planned(self, seen: Observation, labels: Mapping[str, str], *, free: bool) -> ModePlan:
        admission = self.admission
        holders = {holding.key for holding in admission.holdings}
        gpu_pods = {pod.key for pod in admission.pods.values() if pod.alive and (pod.request or pod.allocation)}
        gpus = inventory_of(seen.machine, seen.health).gpus
        configuration, held_by = admission.configuration, sorted(holders | gpu_pods)
        unit, features = configuration.unit_mib, configuration.features
        return plan(self._in_force, labels, unit, gpus, held_by, free=free, features=features)

    def _want_daemons(self, setup: NodeConfig) -> None:
        if setup.mode is not Mode.MPS or self.foreign:
            self._mps.want(())
            return
        single = {(gpu.uuid,) for gpu in setup.inventory.gpus if gpu.healthy}
        several = {
            tuple(holding.gpus[index] for index in sorted(holding.gpus))
            for holding in self.admission.holdings
            if len(holding.gpus) > 1
        }
        self._mps.want(single | several)

    def _wanted(self, setup: NodeConfig) -> tuple[str, ...]:
        """Return each resource that is to be known here, be it with 0."""
        wanted = {*MODE_RESOURCES, *(instance.resource for instance in setup.instances)}
        if self.foreign:
            wanted.discard(WHOLE_GPU)
        return tuple(sorted(wanted))

    def _find_foreign(self, node: Node | None) -> str:
        found = (path for pattern in SOCKET_PATTERNS for path in self._directory.glob(pattern))
        served = WHOLE_GPU in self._records.saved.registered or WHOLE_GPU in self._resources
        if node is not None and INVENTORY_ANNOTATION in node.metadata.annotations:
            served = True
        pods = (known.pod for known in self.admission.pods.values())
        return foreign_plugin((path.name for path in found if answers(path)), pods, node, served_before=served)


def starting_setup(seen: Observation, in_force: EffectiveMode | None, unit_mib: int) -> NodeConfig:
    """Return what is offered before the node's labels are known: what was ``in_force``, or the exclusive mode."""
    return setup_of(seen.machine, seen.health, in_force or EffectiveMode(Mode.EXCLUSIVE, unit_mib), "", "")
