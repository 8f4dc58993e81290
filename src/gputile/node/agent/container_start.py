"""Decides ``PreStartContainer`` and writes the container's directory, limits and mounts.

GPUs without free capacity, or with pods that the container must not share them with, are a matter of time: the
container waits until the pods that were on them before have gone. After a deletion by force it also waits until their
processes have let go of its GPUs. Such processes are known by their containers' files (``UsageFiles.is_held``), without
a look at processes of the host.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final

from gputile.api.well_known import Mode
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.answers import (
    CONTAINER_DIRECTORY,
    CONTAINER_PIPES,
    PIPE_ENV,
    AllocateAnswer,
    Limits,
    daemon_name,
    shares_of,
)
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.cdi import CdiFiles
from gputile.node.agent.device_ids import Listing
from gputile.node.agent.device_table import DeviceEvent, DeviceTable
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.isolation_mounts import IsolationMounts
from gputile.node.agent.kubelet import AgentNotReady
from gputile.node.agent.mps import MpsDaemons
from gputile.node.agent.ownership import sync_with_listing
from gputile.node.agent.pod_devices import ContainerDevices, DeviceOwner, PodDevices, stand_in
from gputile.node.agent.rules import AllocationRules, Occupied, rules_of
from gputile.node.agent.settings import MPS_DIRECTORY, HostPaths
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb


class NotYet(Exception):
    """A container must not start before this is settled; the kubelet tries again."""


@dataclass(frozen=True, slots=True)
class Start:
    """A container that may be about to start: its limits, and what it was told to mount, None where nobody knows."""

    directory: str
    limits: Limits
    mounts: Mapping[str, str] | None


def prestart(
    state: AllocationState, resource: str, ids: tuple[str, ...], listing: Listing | None, now_ns: int
) -> list[Start]:
    """Return the container with ``ids``.

    An init container and the container that takes over its IDs are two, each with its own limits.

    Raises:
        NotYet: it is not certain whose the IDs are, or what is known of it forbids the start.
    """
    if listing is not None:
        sync_with_listing(state, listing, now_ns)
    wanted = frozenset(ids)
    found = [
        (pod_devices, devices)
        for pod_devices in state.device_table.holders(resource, ids)
        for devices in pod_devices.devices
        if devices.resource == resource and frozenset(devices.ids) == wanted
    ]
    if not found:
        raise NotYet(f"no container is known yet that has these IDs of {resource}")
    if not all(state.device_table.stage(devices.directory).may_run for _, devices in found):
        _wait_for_listing(listing, resource, wanted, {pod_devices.key for pod_devices, _ in found})
    for pod_devices, devices in found:
        if (problem := rules_of(state).given_twice(pod_devices, devices)) is not None:
            raise NotYet(problem)
    if len({pod_devices.uid for pod_devices, _ in found}) > 1:  # one that was let start before has all it needs
        found = [pair for pair in found if not state.device_table.stage(pair[1].directory).may_run] or found
    return [_start(state, pod_devices, devices) for pod_devices, devices in found]


def unmatched(state: AllocationState, starts: Iterable[Start], owners: Iterable[DeviceOwner]) -> list[DeviceOwner]:
    """Return those of ``owners`` that none of ``starts`` is for: another container, or another directory."""
    return sorted(owner for owner in owners if not any(_is_for(state, start, owner) for start in starts))


def only_for(state: AllocationState, starts: list[Start], owners: Set[DeviceOwner]) -> list[Start]:
    """Return those of ``starts`` that are for ``owners``.

    These are the containers for which the kubelet has written the IDs down, none where that cannot be read. Each that
    has not been let start gets its limits into the directory that it mounts, or all of them wait: the call names none.

    Raises:
        NotYet: it is not known of one of them.
    """
    if not owners:
        return starts
    right = [start for start in starts if any(_is_for(state, start, owner) for owner in owners)]
    others = unmatched(state, starts, owners)
    table = state.device_table
    if lacking := [owner for owner in others if not right or not table.stage(owner.directory).may_run]:
        raise NotYet(
            f"the kubelet has given these IDs to container {lacking[0].container} of the pod with UID "
            f"{lacking[0].uid}, of which the API server has not said enough yet"
        )
    return right


def _is_for(state: AllocationState, start: Start, owner: DeviceOwner) -> bool:
    """Return whether a start is that of a container as the kubelet has written it down.

    The list names a pod only by its name, which may be another pod's by now: one that was deleted by force and created
    again. A stand-in starts with whole GPUs only.
    """
    if owner.directory not in ("", start.directory):
        return False
    if stand_in(start.limits.uid):
        return True
    held = state.device_table.get(start.limits.uid)
    pod = state.pod_of(held) if held is not None else None
    uid = pod.kubelet_uid if pod is not None else held.kubelet_uid if held is not None else ""
    return (uid or start.limits.uid, start.limits.container) == (owner.uid, owner.container)


def shown_for(listing: Listing, resource: str, ids: frozenset[str]) -> set[str]:
    return {
        key
        for key, listed in listing.items()
        if any(shown == ids and named == resource for _, named, shown in listed.parts())
    }


def _wait_for_listing(listing: Listing | None, resource: str, ids: frozenset[str], keys: set[str]) -> None:
    """Keep a container from starting as that of the pods of ``keys`` where that may be a wrong guess of ``Allocate``.

    Raises:
        NotYet: the kubelet does not list its pods, or lists another one with the IDs. It lists no init containers.
    """
    if listing is None:
        raise NotYet(f"the kubelet does not list its pods: it is not certain who has these IDs of {resource}")
    if (others := shown_for(listing, resource, ids)) and others.isdisjoint(keys):
        raise NotYet(f"the kubelet lists these IDs of {resource} for pod {min(others)}, which is not known yet")


def _start(state: AllocationState, pod_devices: PodDevices, devices: ContainerDevices) -> Start:
    if not state.device_table.stage(devices.directory).may_run:
        _wait_for_others(state, pod_devices, lambda rules: rules.check_others(pod_devices, devices.resource))
    mounts = dict(devices.mounts) if devices.mounts is not None else None
    return Start(devices.directory, _limits(state, pod_devices, devices), mounts)


def _rules_before(state: AllocationState, pod_devices: PodDevices) -> AllocationRules:
    """Return the rules beside those who have GPUs rather than the pod of ``pod_devices``; others wait for it."""
    first = DeviceTable(o for o in state.device_table if o.uid != pod_devices.uid and _precedes(state, o, pod_devices))
    return rules_of(state, first)


def _wait_for_others(state: AllocationState, pod_devices: PodDevices, check: Callable[[AllocationRules], None]) -> None:
    """Keep a container from starting while pods forbid it, by ``check``, that were on its GPUs before.

    Raises:
        NotYet: says who or what is in the way.
    """
    try:
        check(rules_of(state))
    except Occupied:  # who came first matters only where not all pods have room
        try:
            check(_rules_before(state, pod_devices))
        except Occupied as error:
            raise NotYet(str(error)) from error


def _precedes(state: AllocationState, one: PodDevices, other: PodDevices) -> bool:
    """Return whether ``one`` has the GPUs rather than ``other``: it has been started, or came first."""
    ran, mine = (
        any(state.device_table.stage(devices.directory).may_run for devices in pod_devices.devices)
        for pod_devices in (one, other)
    )
    return ran if ran != mine else (one.since_ns, one.uid) < (other.since_ns, other.uid)


def _limits(state: AllocationState, pod_devices: PodDevices, devices: ContainerDevices) -> Limits:
    if not pod_devices.identified:
        raise NotYet("the kubelet does not say yet whose these device IDs are")
    if stand_in(pod_devices.uid) and state.node_config.mode.shared:
        # Its IDs may count in another unit than the one in force, and its annotation may say other GPUs.
        raise NotYet(f"the API server has not said yet what pod {pod_devices.key} asks for")
    own = state.pod_of(pod_devices)
    indices = state.gpus(pod_devices, devices.container, own)
    apart = pod_devices.container_indices[devices.container]
    may_run = state.device_table.stage(devices.directory).may_run
    if own is not None and own.shared_gpus == 1 and len(apart) > 1 and not may_run:
        names = ", ".join(f"GPU {index}" for index in sorted(apart))
        raise NotYet(f"the kubelet chose {names}; the container asks for one GPU: delete the pod, to be admitted anew")
    _wait_for_others(state, pod_devices, lambda rules: rules.check_trust_groups(pod_devices, indices))
    shares = shares_of(
        state.node_config,
        pod_devices,
        devices.container,
        own.container_request(devices.container) if own else None,
        indices,
    )
    return Limits(
        namespace=pod_devices.namespace,
        pod=pod_devices.name,
        uid=pod_devices.uid,
        container=devices.container,
        mode=state.node_config.mode.value,
        unit_mib=pod_devices.unit_mib,
        gpus=shares,
    )


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
