"""Publishes the node's ResourceSlice while the node offers its GPUs to claims.

The slice is applied when it changes. It is also applied once a minute, because it may have been
deleted. The API server writes nothing if the slice is up to date. A kubelet that starts deletes all
slices of its node (``pkg/kubelet/cm/dra/plugin``), possibly after it has registered the driver. So
the slice is applied every two seconds in the first minute after a kubelet's start.

The API server drops fields without an error if their feature gate is disabled. So a dry run first
shows what the API server would store. If the server does not support shares of devices, a node in a
shared mode offers nothing, and a node in mode ``default`` offers whole GPUs.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Final

from gputile.api.core import NodeCondition, node_condition
from gputile.api.resource_claims import RESOURCE_API, ResourceSlice, device_name
from gputile.api.well_known import ConditionReason, ConditionType
from gputile.kube.errors import Forbidden, Invalid, KubeError, NotFound
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.api_server import NodeApi, Wakeup
from gputile.node.agent.claims.slices import dropped_fields, instance_name, slice_name, slice_of
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.settings import HostPaths
from gputile.node.gateway import kubelet_pb2 as dra
from gputile.node.nvml.probe import ProbedMachine

log = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
APPLY_EVERY_S: Final = 50.0
LOOK_EVERY_S, KUBELET_STARTS_FOR_S = 2.0, 60.0
HEALTH_EVERY_S: Final = 600
# after this time without a report, the kubelet reports the health of devices as unknown
HEALTH_FOR_S: Final = 3600


@dataclass
class SlicePublisher:
    """The ResourceSlice of one node. ``wakeup`` wakes the loop that calls ``publish``."""

    state: AllocationState
    cluster: NodeApi
    kubelet: KubeletLink
    paths: HostPaths
    wakeup: Wakeup

    def __post_init__(self) -> None:
        self._sent: ResourceSlice | None = None
        self._again_s, self._problem = 0.0, ""
        # The previous agent may have written a slice.
        self._may_exist = self._by_claims

    async def watch_kubelet(self) -> None:
        """Wake the loop again and again while the kubelet may delete the slice."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._by_claims and self._kubelet_starts:
                self.wakeup.wish()

    async def publish(self, machine: ProbedMachine) -> None:
        """Serve the DRA driver and publish the slice, or stop both, as the mode in force requires.

        A failure is retried.
        """
        serves = self._by_claims or bool(self.state.claims)
        self.kubelet.serve_claims(self._health() if serves else None)
        try:
            await self._publish_slice(machine)
        except (NotFound, Invalid, Forbidden) as error:
            self._problem = f"the API server refuses the node's ResourceSlice: {error}"
            if isinstance(error, NotFound):
                self._problem = (
                    f"the API server has no {RESOURCE_API}, which needs Kubernetes 1.34 or later"
                )
        except KubeError as error:
            log.warning("cannot write the node's ResourceSlice; retrying: %s", error)
            asyncio.get_running_loop().call_later(AGAIN_S, self.wakeup.wish)

    def condition(self) -> NodeCondition:
        kind = ConditionType.CLAIMS_REFUSED
        if self._problem and self._by_claims:  # on another node, the kubelet deletes the slice
            return node_condition(kind, "True", ConditionReason.CLAIMS_UNSUPPORTED, self._problem)
        text = "GPUs are offered by claims"
        if not self._by_claims:
            text = "the node's label does not select claims"
        return node_condition(kind, "False", ConditionReason.CLAIMS_AS_ASKED, text)

    @property
    def _by_claims(self) -> bool:
        return self.state.node_config.effective_mode.claims

    @property
    def _kubelet_starts(self) -> bool:
        return time.monotonic() - self.kubelet.state.epoch < KUBELET_STARTS_FOR_S

    async def _publish_slice(self, machine: ProbedMachine) -> None:
        now, node, problem = time.monotonic(), self.state.node, self._unable()
        wanted = offered = None if problem else self._slice(machine)
        if wanted is not None:
            if wanted == self._sent and now < self._again_s and not self._kubelet_starts:
                return
            stored = await self.cluster.apply_slice(wanted, dry_run=True)
            dropped = dropped_fields(wanted, stored)
            lacking = ", ".join(sorted(dropped - {"taints"}))
            if lacking and self.state.node_config.mode.shared:
                problem = (
                    f"the API server drops {lacking} of ResourceSlices, so claims cannot share a "
                    "GPU: use Kubernetes 1.36 with the feature gate DRAConsumableCapacity, or mode "
                    "default, in which the node offers whole GPUs"
                )
            offered = self._slice(machine, taints="taints" not in dropped)
        self._problem = problem
        if offered is not None and not problem:
            self._may_exist = True  # even if the response is lost
            await self.cluster.apply_slice(offered)
        elif self._may_exist and node is not None:
            await self.cluster.delete_slice(slice_name(node))
            self._may_exist = False
        self._sent, self._again_s = wanted, now + APPLY_EVERY_S

    def _unable(self) -> str:
        """Return why this node cannot offer its GPUs to claims as requested, or ""."""
        if not self._by_claims:
            return ""
        registry = self.paths.plugin_registry
        if not registry.is_dir():
            return f"the kubelet's directory {registry} is not mounted in the agent"
        if self.paths.cdi is None:
            return "claims need CDI: set the agent's directory for CDI specifications (--cdi-dir)"
        return ""

    def _slice(self, machine: ProbedMachine, *, taints: bool = True) -> ResourceSlice | None:
        """Return the slice that this node offers, or None if it offers nothing to claims."""
        state = self.state
        offers = self._by_claims and state.node_config.withheld is None
        if state.node is None or not offers or state.decided.closing:
            return None
        most = state.configuration.max_pods_per_gpu
        return slice_of(state.node, state.node_config, machine, most, taints=taints)

    def _health(self) -> bytes:
        config, now = self.state.node_config, int(time.time()) // HEALTH_EVERY_S * HEALTH_EVERY_S
        devices = [(device_name(gpu.index), gpu.healthy) for gpu in config.inventory.gpus]
        devices += [(instance_name(each), each.healthy) for each in config.instances]
        pool = self.state.node.metadata.name if self.state.node is not None else ""
        return dra.NodeWatchResourcesResponse(
            devices=[
                dra.DeviceHealth(
                    device=dra.DeviceIdentifier(pool_name=pool, device_name=name),
                    health=dra.HEALTHY if healthy else dra.UNHEALTHY,
                    last_updated_time=now,
                    health_check_timeout_seconds=HEALTH_FOR_S,
                )
                for name, healthy in devices
            ]
        ).SerializeToString()
