"""Publishes the node's ResourceSlice while it offers its GPUs by claims.

The slice is applied when it changes, and once a minute in case it was deleted; the API server
writes nothing if it is up to date. A kubelet deletes all slices of its node when it starts
(``pkg/kubelet/cm/dra/plugin``), possibly after it has registered the driver, so for a minute from
then the slice is applied every two seconds.

The API server drops fields without an error if their feature gate is disabled, so the stored slice
is compared with the one that was sent. Without shares a node in a shared mode offers nothing; one
in mode ``default`` offers whole GPUs.
"""

import asyncio
import logging
import time
from typing import Final

from gputile.api.core import NodeCondition, node_condition
from gputile.api.resource_claims import RESOURCE_API, ResourceSlice
from gputile.api.well_known import ConditionReason, ConditionType
from gputile.kube.errors import Forbidden, Invalid, KubeError, NotFound
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.api_server import NodeApi, Wakeup
from gputile.node.agent.claims.slices import dropped_fields, slice_name, slice_of
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.settings import HostPaths
from gputile.node.nvml.probe import ProbedMachine

log = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
APPLY_EVERY_S: Final = 50.0
GATES_EVERY_S: Final = 600.0
LOOK_EVERY_S, KUBELET_STARTS_FOR_S = 2.0, 60.0


class SlicePublisher:
    """The slice of one node. ``publish`` wakes the loop that calls the method of this name."""

    def __init__(
        self,
        state: AllocationState,
        cluster: NodeApi,
        kubelet: KubeletLink,
        paths: HostPaths,
        publish: Wakeup,
    ) -> None:
        self._state = state
        self._cluster = cluster
        self._kubelet = kubelet
        self._paths = paths
        self._publish = publish
        self._applied: ResourceSlice | None = None
        self._apply_again_s = 0.0
        self._may_exist = state.node_config.effective_mode.claims  # written by the previous agent
        self._dropped: frozenset[str] = frozenset()
        self._gates_again_s = 0.0
        self._problem = ""

    async def watch_kubelet(self) -> None:
        """Wake the loop repeatedly while the kubelet may delete the slice."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._by_claims and self._kubelet_starts:
                self._publish.wish()

    async def publish(self, machine: ProbedMachine) -> None:
        """Serve the kubelet and publish the slice, or neither, depending on the mode in force.

        A failure is retried.
        """
        self._kubelet.serve_claims(wanted=self._by_claims or bool(self._state.claims))
        try:
            await self._publish_slice(machine)
        except (NotFound, Invalid, Forbidden) as error:
            self._problem = f"the API server refuses the node's ResourceSlice: {error}"
            if isinstance(error, NotFound):
                self._problem = (
                    f"the API server has no {RESOURCE_API}, which Kubernetes has from 1.34 on"
                )
        except KubeError as error:
            log.warning("cannot write the node's ResourceSlice; retrying: %s", error)
            asyncio.get_running_loop().call_later(AGAIN_S, self._publish.wish)

    def condition(self) -> NodeCondition:
        kind = ConditionType.CLAIMS_REFUSED
        if self._problem and self._by_claims:  # on other nodes the kubelet deletes the slice
            return node_condition(kind, "True", ConditionReason.CLAIMS_UNSUPPORTED, self._problem)
        text = (
            "GPUs are offered by claims"
            if self._by_claims
            else "the node's label does not select claims"
        )
        return node_condition(kind, "False", ConditionReason.CLAIMS_AS_ASKED, text)

    @property
    def _by_claims(self) -> bool:
        return self._state.node_config.effective_mode.claims

    @property
    def _kubelet_starts(self) -> bool:
        return time.monotonic() - self._kubelet.state.epoch < KUBELET_STARTS_FOR_S

    async def _publish_slice(self, machine: ProbedMachine) -> None:
        now = time.monotonic()
        if self._dropped and now >= self._gates_again_s:
            await self._look_at_gates(machine, now)
        self._problem = self._unable()
        wanted = self._wanted(machine)
        if wanted is None:
            if self._may_exist and self._state.node is not None:
                await self._cluster.delete_slice(slice_name(self._state.node))
                self._may_exist = False
            self._applied = None
        elif wanted != self._applied or self._kubelet_starts or now >= self._apply_again_s:
            self._may_exist = True  # the answer may be lost
            lost = dropped_fields(wanted, await self._cluster.apply_slice(wanted))
            self._applied, self._apply_again_s = wanted, now + APPLY_EVERY_S
            if lost - self._dropped:
                self._dropped |= lost
                self._gates_again_s = now + GATES_EVERY_S
                self._publish.wish()

    async def _look_at_gates(self, machine: ProbedMachine, now: float) -> None:
        """Ask whether the API server still drops fields: their gates may be enabled by now."""
        state, self._gates_again_s = self._state, now + GATES_EVERY_S
        if state.node is not None and self._by_claims:
            most = state.configuration.max_pods_per_gpu
            full = slice_of(state.node, state.node_config, machine, most)
            stored = await self._cluster.apply_slice(full, dry_run=True)
            self._dropped = dropped_fields(full, stored)

    def _unable(self) -> str:
        """Return why this node cannot offer its GPUs to claims; "" if it can or need not."""
        if not self._by_claims:
            return ""
        registry = self._paths.plugin_registry
        if not registry.is_dir():
            return f"the agent does not see the kubelet's directory {registry}"
        if self._paths.cdi is None:
            return (
                "claims need the container runtime's CDI: give the agent its directory (--cdi-dir)"
            )
        lacking = sorted(self._dropped - {"taints"})
        if lacking and self._state.node_config.mode.shared:
            return (
                f"the API server drops {', '.join(lacking)} of ResourceSlices, so that claims "
                "cannot share a GPU: that needs Kubernetes 1.36 with the feature gate "
                "DRAConsumableCapacity; in mode default the node gives whole GPUs"
            )
        return ""

    def _wanted(self, machine: ProbedMachine) -> ResourceSlice | None:
        state = self._state
        offers = self._by_claims and not self._problem and state.node_config.withheld is None
        if state.node is None or not offers or state.advertised.decided.closing:
            return None
        most, taints = state.configuration.max_pods_per_gpu, "taints" not in self._dropped
        return slice_of(state.node, state.node_config, machine, most, taints=taints)
