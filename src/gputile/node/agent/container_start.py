"""Decides ``PreStartContainer`` and writes the container's directory, limits and mounts.

By then the kubelet has written down for which container it has the IDs, and which allocation directory that container
mounts. GPUs without free capacity, or with pods that the container must not share them with, are a matter of time: the
container waits until the pods that were on them before have gone. After a deletion by force it also waits until their
processes have let go of its GPUs. Such processes are known by their containers' files (``UsageFiles.is_held``), without
a look at processes of the host.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gputile.api.well_known import Mode
from gputile.node.agent.allocation import CONTAINER_PIPES, PIPE_ENV, AllocateAnswer
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.cdi import CdiFiles
from gputile.node.agent.device_table import CONTAINER_DIRECTORY, ContainerDevices, DeviceTable, Limits, PodDevices
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.isolation_mounts import IsolationMounts, NotIsolated
from gputile.node.agent.holdings import let_start
from gputile.node.agent.mps import MpsDaemons, daemon_name
from gputile.node.agent.rules import AllocationRules, Occupied, rules_of
from gputile.node.agent.settings import MPS_DIRECTORY, HostPaths
from gputile.node.gateway import kubelet_pb2 as pb


class NotYet(Exception):
    """A container must not start before this is settled; the kubelet tries again."""


@dataclass(frozen=True, slots=True)
class Start:
    """A container that is about to start: its limits, and what it mounts, None where nobody knows."""

    directory: str
    limits: Limits
    mounts: Mapping[str, str] | None


def prestart(state: AllocationState, resource: str, ids: tuple[str, ...], now_ns: int) -> list[Start]:
    """Return the container to which the kubelet has given ``ids``.

    An init container and the container that takes over its IDs are two, each with its own limits.

    Raises:
        NotYet: it is not certain whose the IDs are, or what is known of it forbids the start.
    """
    wanted = frozenset(ids)
    mounted = {e.directory for e in state.written if e.resource == resource and e.ids == wanted}
    found = [
        (held, each)
        for held in state.device_table.holders(resource, ids)
        for each in held.devices
        if each.resource == resource and each.directory in mounted
    ]
    why = ""
    if state.unread:
        why = f": the kubelet's checkpoint cannot be read ({state.unread}), and its list has no init containers"
        found = [pair for pair in found if pair[1].directory in state.started or not _has_init(state, *pair)]
    if not found:
        raise NotYet(f"no container is known yet that has these IDs of {resource}{why}")
    for held, each in found:
        if (problem := rules_of(state).given_twice(held, each)) is not None:
            raise NotYet(problem)
    pods = {held.uid: held.key for held, _ in found}
    if len(pods) > 1:  # one that was let start before has all it needs
        found = [pair for pair in found if pair[1].directory not in state.started] or found
    try:
        return [_start(state, held, each, now_ns) for held, each in found]
    except NotYet as error:
        if len(pods) == 1:
            raise
        both = ", ".join(sorted(pods.values()))  # nobody knows which of them calls, so each waits for the others
        raise NotYet(f"{error}; the kubelet has given {ids[0]} to pods {both}: delete one of them") from error


def _has_init(state: AllocationState, held: PodDevices, devices: ContainerDevices) -> bool:
    """Return whether the start may be that of an init container of the pod, which may have the same IDs."""
    pod = state.pod_of(held)
    inits = pod.pod.spec.init_containers if pod is not None else ()
    return any(each.restart_policy != "Always" and devices.resource in each.resources.limits for each in inits)


def _start(state: AllocationState, held: PodDevices, devices: ContainerDevices, now_ns: int) -> Start:
    if devices.directory not in state.started:
        _wait_for_others(state, held, lambda rules: rules.check_others(held, devices.resource))
    mounts = dict(devices.mounts) if devices.mounts is not None else None
    return Start(devices.directory, _limits(state, held, devices, now_ns), mounts)


def _wait_for_others(state: AllocationState, held: PodDevices, check: Callable[[AllocationRules], None]) -> None:
    """Keep a container from starting while pods that were on its GPUs first do not admit it, by ``check``.

    Raises:
        NotYet: says who or what is in the way.
    """
    try:
        check(rules_of(state))
    except Occupied:  # who came first matters only where not all pods have room
        table = state.device_table
        first = DeviceTable((o for o in table if o.uid != held.uid and _precedes(table, o, held)), table.started)
        try:
            check(rules_of(state, first))
        except Occupied as error:
            raise NotYet(str(error)) from error


def _precedes(table: DeviceTable, one: PodDevices, other: PodDevices) -> bool:
    """Return whether ``one`` goes before ``other`` on their GPUs: it has been started, or came first."""
    ran, mine = (any(each.directory in table.started for each in held.devices) for held in (one, other))
    return ran if ran != mine else (one.since_ns, one.uid) < (other.since_ns, other.uid)


def _limits(state: AllocationState, held: PodDevices, devices: ContainerDevices, now_ns: int) -> Limits:
    own = state.pod_of(held)
    if own is None and (state.node_config.mode.shared or not held.identified):
        # Its IDs may count in another unit than the one in force, and its annotation may say other GPUs.
        raise NotYet(f"the API server has not said yet what pod {held.key if held.identified else held.uid} asks for")
    uuids = state.gpus(held, devices.container, own)
    apart = held.container_gpus[devices.container]
    if own is not None and own.shared_gpus == 1 and len(apart) > 1 and devices.directory not in state.started:
        names = state.node_config.names(apart)
        raise NotYet(
            f"the kubelet chose {names}; the container asks for one GPU: delete the pod, so that it is admitted again"
        )
    _wait_for_others(state, held, lambda rules: rules.check_trust_groups(held, uuids))
    before = state.records.get(devices.directory)
    return Limits(
        namespace=held.namespace,
        pod=held.name,
        uid=held.uid,
        container=devices.container,
        mode=state.node_config.mode.value,
        unit_mib=held.unit_mib,
        gpus=state.shares(held, devices.container),
        devices=(before.devices if before is not None else {}) | {devices.resource: devices.ids},
        phase=devices.phase,
        since_ns=before.since_ns if before is not None else now_ns,
        mounts=devices.mounts or (),
    )


LONGEST_S: Final = 120.0
LEFT_WITHIN_S, LOOK_AGAIN_S = 20.0, 0.1  # the kubelet waits 30 s for PreStartContainer


class LingeringProcesses:
    """The GPUs that processes of deleted pods still use."""

    def __init__(self, store: NodeFiles) -> None:
        self._store = store
        self._since: dict[str, float] = {}  # when processes were first found that outlived their pod, by directory

    def on(self, uuids: Collection[str], present: Collection[str]) -> str:
        """Return the deleted pod whose processes still use one of the GPUs.

        It is "" if there is none, or if it has been waited for long enough. ``present`` are the allocation directories
        of the pods that are not gone.
        """
        now, usage = time.monotonic(), self._store.usage
        held = [name for name in usage.names() if name not in present and usage.is_held(name)]
        self._since = {name: self._since.get(name, now) for name in held}
        for name, since in self._since.items():
            limits = self._store.limits(name) if now - since < LONGEST_S else None
            if limits is not None and any(gpu.uuid in uuids for gpu in limits.gpus):
                return limits.key
        return ""


DAEMON_WITHIN_S = 5.0


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

    def prepare(self, answer: AllocateAnswer, limits: Limits) -> None:
        """Make the directories that the container mounts, with what was answered.

        Raises:
            OSError: one cannot be made.
        """
        self._store.write_answer(answer.directory, limits)
        if PIPE_ENV in answer.environment:
            self._mps.pipes(answer.uuids).mkdir(parents=True, exist_ok=True)

    async def start(self, start: Start, state: AllocationState) -> None:
        """Write the limits of a container that is about to start, once the node is ready for it.

        Raises:
            NotYet: it must not start yet, or it would not be held to its limits.
        """
        limits = start.limits
        await self._until_served(limits)
        await self._until_left(limits, state)
        usage = self._isolate(start)
        try:
            self._store.write_limits(start.directory, limits, usage)
            let_start(state, start.directory, limits, time.time_ns())
            self._arbiter.starting(start.directory, {gpu.uuid for gpu in limits.gpus})
        except (OSError, ValueError) as error:
            raise NotYet(f"the limits cannot be written: {error}") from error

    def is_started(self, start: Start, state: AllocationState) -> bool:
        """Return whether a container was let start with these limits, and has all that it mounts: it may be running.

        The library that the answer names, which may be a later one, is installed.

        Raises:
            NotYet: it would not be held to its limits.
        """
        if start.directory not in state.started or self._store.limits(start.directory) != start.limits:
            return False
        usage = self._isolate(start)
        return usage is None or usage.exists()

    def _isolate(self, start: Start) -> Path | None:
        limits = start.limits
        try:
            return self._isolation.prepare(Mode(limits.mode), start.directory, start.mounts)
        except NotIsolated as error:
            pod = f"{limits.namespace}/{limits.pod}"
            raise NotYet(f"container {limits.container} of pod {pod} does not start: {error}") from error

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
            raise NotYet(f"the MPS control daemon of {', '.join(gpus)} does not run yet{why}") from error

    async def _until_left(self, limits: Limits, state: AllocationState) -> None:
        gpus = frozenset(share.uuid for share in limits.gpus)
        for _ in range(int(LEFT_WITHIN_S / LOOK_AGAIN_S)):
            if not self._lingering.on(gpus, state.directories()):
                return
            await asyncio.sleep(LOOK_AGAIN_S)
        if gone := self._lingering.on(gpus, state.directories()):
            raise NotYet(f"processes of the deleted pod {gone} still hold memory of this container's GPUs")
