"""Writes what was decided for a container: its directory, limits, mounts and share of time.

A container waits until the processes of pods that are gone have let go of its GPUs, after a deletion by force. Such
processes are known by their containers' files (``UsageFiles.is_held``), without a look at processes of the host.
"""

import asyncio
import time
from collections.abc import Collection
from typing import Final

from gputile.api.well_known import Mode
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.decisions.answers.allocate import (
    CONTAINER_DIRECTORY,
    CONTAINER_PIPES,
    PIPE_ENV,
    AllocateAnswer,
    Limits,
    daemon_name,
)
from gputile.node.agent.decisions.calls.container_start import Start
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.cdi_files import CdiFiles
from gputile.node.agent.files.isolation_mounts import IsolationMounts
from gputile.node.agent.kubelet import AgentNotReady
from gputile.node.agent.mps import MpsDaemons
from gputile.node.agent.settings import MPS_DIRECTORY, HostPaths
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_stage import DeviceEvent
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb

LONGEST_S: Final = 120.0


class LingeringProcesses:
    """The GPUs that processes of pods that are gone still use."""

    def __init__(self, store: NodeFiles) -> None:
        self._store = store
        self._since: dict[str, float] = {}

    def on(self, uuids: Collection[str], present: Collection[str]) -> str:
        """Return which pod that is gone still has processes on one of the GPUs, "" for none worth waiting for.

        ``present`` are the allocation directories of the pods that are not gone.
        """
        now, found, held = time.monotonic(), "", set()
        for name in self._store.usage.names():
            if name in present or not self._store.usage.is_held(name):
                continue
            held.add(name)
            limits = self._store.limits(name)
            since = self._since.setdefault(name, now)
            if limits is not None and now - since < LONGEST_S and any(gpu.uuid in uuids for gpu in limits.gpus):
                found = f"{limits.namespace}/{limits.pod}"
        self._since = {name: since for name, since in self._since.items() if name in held}
        return found


DAEMON_WITHIN_S = 5.0
LEFT_WITHIN_S, LOOK_AGAIN_S = 20.0, 0.1  # the kubelet waits 30 s for PreStartContainer


class ContainerPreparation:
    """The files of all containers on the node, and the daemons that must run before a container does."""

    def __init__(
        self, store: NodeFiles, paths: HostPaths, mps: MpsDaemons, cdi: CdiFiles | None, arbiter: ArbiterProcess
    ) -> None:
        host_state = paths.host_state or paths.state
        self._store = store
        self._host_allocations = host_state / "allocations"
        self._host_mps = host_state / MPS_DIRECTORY
        self._isolation = IsolationMounts(store.directory, host_state, store.usage)
        self._lingering = LingeringProcesses(store)
        self._mps = mps
        self._cdi = cdi
        self._arbiter = arbiter

    def response(self, mode: Mode, answer: AllocateAnswer) -> pb.ContainerAllocateResponse:
        allocation = self._host_allocations / answer.directory
        mounts = [pb.Mount(container_path=CONTAINER_DIRECTORY, host_path=str(allocation), read_only=True)]
        mounts += self._isolation.mounts(mode, answer.directory)
        if PIPE_ENV in answer.environment:
            pipes = self._host_mps / daemon_name(answer.uuids) / "pipe"
            mounts.append(pb.Mount(container_path=CONTAINER_PIPES, host_path=str(pipes)))
        devices = self._cdi.devices(answer.uuids) if self._cdi is not None else ()
        return pb.ContainerAllocateResponse(
            envs=dict(answer.environment), mounts=mounts, cdi_devices=[pb.CDIDevice(name=name) for name in devices]
        )

    def prepare(self, answer: AllocateAnswer) -> None:
        """Make the directories that the container mounts.

        Raises:
            OSError: one cannot be made.
        """
        self._store.prepare(answer.directory)
        if PIPE_ENV in answer.environment:
            self._mps.pipes(answer.uuids).mkdir(parents=True, exist_ok=True)

    async def start(self, start: Start, state: AllocationState) -> None:
        """Write the limits of a container that is about to start, once the node is ready for it.

        Raises:
            AgentNotReady: it must not start yet.
            NotIsolated: it would not be held to its limits.
            OSError: a file cannot be written.
        """
        await self._until_served(start.limits)
        await self._until_left(start.limits, state)
        usage = self._isolation.prepare(Mode(start.limits.mode), start.directory, start.mounts)
        self._store.write_limits(start.directory, start.limits, usage)
        state.device_table.apply_by_directory(DeviceEvent.LET_START, [start.directory])
        self._arbiter.starting(start.directory)

    async def _until_served(self, limits: Limits) -> None:
        """Wait for the container's MPS control daemon; a daemon for several GPUs starts when they are allocated."""
        gpus = tuple(share.uuid for share in limits.gpus)
        if limits.mode != Mode.MPS.value or not gpus:
            return
        try:
            async with asyncio.timeout(DAEMON_WITHIN_S):
                await self._mps.until_up(gpus)
        except TimeoutError as error:
            why = f": {problem}" if (problem := self._mps.problem) is not None else ""
            raise AgentNotReady(f"the MPS control daemon of {', '.join(gpus)} does not run yet{why}") from error

    async def _until_left(self, limits: Limits, state: AllocationState) -> None:
        gpus = frozenset(share.uuid for share in limits.gpus)
        for _ in range(int(LEFT_WITHIN_S / LOOK_AGAIN_S)):
            if not self._lingering.on(gpus, state.directories()):
                return
            await asyncio.sleep(LOOK_AGAIN_S)
        if gone := self._lingering.on(gpus, state.directories()):
            raise AgentNotReady(f"processes of the deleted pod {gone} still hold memory of this container's GPUs")
