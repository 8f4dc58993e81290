"""Decides about ``PreStartContainer``, and writes the directory, limits and mounts of a container.

When the kubelet makes this call, its checkpoint already names the container that has the IDs, and
the allocation directory that the container mounts. The container waits for earlier pods if its GPUs
lack capacity, or if it must not share them with these pods. After a forced deletion, it also waits
until the processes of the deleted pod have released the GPUs. The agent recognizes such processes
by the files of their containers (``UsageFiles.is_held``), not by the processes of the host.

The kubelet starts the containers of a pod with the same Allocate response during the pod's whole
life, even if the node has changed. So before each start, the agent checks that the response
contains the isolation library, and that the library's files have the right content and can be
loaded. Otherwise a container could run without limits. If a file is missing, the container runtime
creates a directory in its place. The dynamic loader ignores such a directory, and it also ignores a
library on a file system that is mounted ``noexec``.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gputile.api.well_known import Mode
from gputile.node.agent.allocation import CONTAINER_PIPES, PIPE_ENV, AllocateAnswer
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.cdi import CdiFiles
from gputile.node.agent.device_table import (
    CONTAINER_DIRECTORY,
    ContainerDevices,
    DeviceTable,
    Limits,
    PodDevices,
)
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.node_mounts import LIBRARY_DIRECTORY
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.holdings import record_start
from gputile.node.agent.mps import MpsDaemons
from gputile.node.agent.node_config import LIBRARY_MODES
from gputile.node.agent.rules import AllocationRules, Occupied, rules_of
from gputile.node.gateway import kubelet_pb2 as pb
from gputile.node.isolation.library import (
    CONTAINER_LIBRARY,
    CONTAINER_NIX_PRELOAD,
    CONTAINER_PRELOAD,
    CONTAINER_USAGE,
    Installed,
    LibraryMissing,
    LibraryNotLoadable,
    install,
    library_path,
    must_be_loadable,
    place_in,
    place_named,
)

log = logging.getLogger(__name__)


class NotYet(Exception):
    """A container must not start yet, for the reason in the text. The kubelet retries."""


def prestart(
    state: AllocationState, resource: str, ids: tuple[str, ...], now_ns: int
) -> list[tuple[str, Limits]]:
    """Return the allocation directory and the limits of each container that may have ``ids``.

    Several containers have the same IDs if they inherit the IDs of an init container. Raises NotYet
    if the container cannot be identified with certainty, or must not start yet.
    """
    if state.saved_mode is None:
        raise NotYet("the mode of this node is not known from the API server yet")
    wanted = frozenset(ids)
    mounted = {e.directory for e in state.written if e.resource == resource and e.ids == wanted}
    found = [
        (held, each)
        for held, each in state.device_table.holders(resource, ids)
        if each.directory in mounted
    ]
    why = ""
    if state.unread:
        why = (
            f": the kubelet's checkpoint cannot be read ({state.unread}), and its list has "
            f"no init containers"
        )
        found = [
            pair
            for pair in found
            if pair[1].directory in state.started or not _has_init(state, *pair)
        ]
    if not found:
        raise NotYet(f"no container is known yet that has these IDs of {resource}{why}")
    for held, each in found:
        if (problem := rules_of(state).given_twice(held, each)) is not None:
            raise NotYet(problem)
    pods = {held.uid: held.key for held, _ in found}
    if len(pods) > 1:  # a container that has started before needs no check
        found = [pair for pair in found if pair[1].directory not in state.started] or found
    try:
        return [(each.directory, _limits(state, held, each, now_ns)) for held, each in found]
    except NotYet as error:
        if len(pods) == 1:
            raise
        # Each pod waits, because it is unknown which of them the kubelet starts.
        text = f"{error}; the kubelet has allocated {ids[0]} to pods"
        raise NotYet(f"{text} {', '.join(sorted(pods.values()))}: delete one of them") from error


def _has_init(state: AllocationState, held: PodDevices, devices: ContainerDevices) -> bool:
    """Return whether the pod has an init container that may have the same IDs."""
    pod = state.pod_of(held)
    inits = pod.pod.spec.init_containers if pod is not None else ()
    return any(
        each.restart_policy != "Always" and devices.resource in each.resources.limits
        for each in inits
    )


def _wait_for_others(
    state: AllocationState, held: PodDevices, check: Callable[[AllocationRules], None]
) -> None:
    """Check a pod against all other pods, or, if this fails, only against pods with precedence.

    Raises NotYet if the second check also fails.
    """
    try:
        check(rules_of(state))
    except Occupied:  # precedence matters only if not all pods have room
        table = state.device_table
        first = DeviceTable(
            (o for o in table if o.uid != held.uid and _precedes(table, o, held)), table.started
        )
        try:
            check(rules_of(state, first))
        except Occupied as error:
            raise NotYet(str(error)) from error


def _precedes(table: DeviceTable, one: PodDevices, other: PodDevices) -> bool:
    """Return whether ``one`` has precedence over ``other``.

    A pod that has started precedes a pod that has not started. Otherwise the older pod precedes.
    """
    ran, mine = (
        any(each.directory in table.started for each in held.devices) for held in (one, other)
    )
    return ran if ran != mine else (one.since_ns, one.uid) < (other.since_ns, other.uid)


def _limits(
    state: AllocationState, held: PodDevices, devices: ContainerDevices, now_ns: int
) -> Limits:
    has_started = devices.directory in state.started
    if not has_started:
        _wait_for_others(state, held, lambda rules: rules.check_others(held))
    own, config = state.pod_of(held), state.node_config
    if own is None and (config.mode.shared or config.replicated or not held.identified):
        # The unit of the pod's IDs and its trust group are unknown, and the pod's annotation may
        # name other GPUs.
        raise NotYet(
            f"the request of pod {held.key if held.identified else held.uid} is not known from the "
            f"API server yet"
        )
    uuids = state.gpus(held, devices.container, own)
    if gone := [uuid for uuid in sorted(uuids) if not config.visible((uuid,), (uuid,))]:
        raise NotYet(f"{config.names(gone)} cannot be found on this node")
    apart = held.container_gpus[devices.container] if config.mode.shared else ()
    if own is not None and own.shared_gpus == 1 and len(apart) > 1 and not has_started:
        names = config.names(apart)
        raise NotYet(f"the kubelet chose {names}; the container asks for one GPU: {ANEW}")
    _wait_for_others(state, held, lambda rules: rules.check_trust_groups(held, uuids))
    before = state.records.get(devices.directory)
    # The mounts differ by resource if the agent was upgraded between the two responses.
    mounts = {(each.directory, each.resource): each.mounts for each in state.written}
    return Limits(
        namespace=held.namespace,
        pod=held.name,
        uid=held.uid,
        container=devices.container,
        mode=config.mode,
        unit_mib=held.unit_mib,
        gpus=state.shares(held, devices.container),
        devices=(before.devices if before is not None else {}) | {devices.resource: devices.ids},
        phase=devices.phase,
        since_ns=before.since_ns if before is not None else now_ns,
        mounts=mounts.get((devices.directory, devices.resource), ()),
    )


ANEW: Final = "delete the pod, so that it is admitted again"


def _not_isolated(why: object) -> NotYet:
    return NotYet(f"the container does not start, because its limits would not be enforced: {why}")


def _mount(inside: str, path: Path, *, read_only: bool = True) -> pb.Mount:
    return pb.Mount(container_path=inside, host_path=str(path), read_only=read_only)


class IsolationMounts:
    """The mounts of the isolation library in containers.

    ``state`` is the agent's state directory, which has the same path on the host.
    """

    def __init__(self, state: Path, usage: UsageFiles) -> None:
        self._state = state
        self._usage = usage
        self._content = b""
        self._own: Installed | None = None

    def mounts(self, mode: str, directory: str) -> list[pb.Mount]:
        """Return the mounts of an isolated container, without the mount of its ``directory``.

        The result is empty if the agent has no library. ``prepare`` creates the mounted files.
        """
        if mode not in LIBRARY_MODES:
            return []
        try:
            installed = self._place()
        except (LibraryMissing, OSError) as error:
            log.error("%s gets no library, and will not start: %s", directory, error)
            return []
        return [
            _mount(CONTAINER_LIBRARY, installed.library),
            _mount(CONTAINER_PRELOAD, installed.preload),
            _mount(CONTAINER_NIX_PRELOAD, installed.preload),
            _mount(CONTAINER_USAGE, self._usage.path(directory), read_only=False),
        ]

    def prepare(self, mode: str, directory: str, mounts: Mapping[str, str]) -> Path | None:
        """Install the library at the paths that a container mounts. Return its usage file.

        The result is None for a container without isolation. ``mounts`` maps paths in the container
        to paths on the host, as in the Allocate response. Raises NotYet if the container must not
        start, because its limits would not be enforced.
        """
        if mode not in LIBRARY_MODES:
            return None
        version = Path(mounts.get(CONTAINER_LIBRARY, "")).parent.name
        installed = place_named(self._state / LIBRARY_DIRECTORY, version)
        usage = self._usage.path(directory)
        own = {
            CONTAINER_DIRECTORY: self._state / "allocations" / directory,
            CONTAINER_LIBRARY: installed.library,
            CONTAINER_PRELOAD: installed.preload,
            CONTAINER_USAGE: usage,
        }
        lacking = [inside for inside, path in own.items() if mounts.get(inside) != str(path)]
        if lacking:
            raise _not_isolated(f"it was admitted without its own {', '.join(lacking)}: {ANEW}")
        try:
            self._place()
            install(installed, self._content)
            must_be_loadable(installed)
        except (LibraryMissing, LibraryNotLoadable, OSError) as error:
            raise _not_isolated(error) from error
        if (problem := self._usage.problem()) is not None:
            raise _not_isolated(problem)
        return usage

    def _place(self) -> Installed:
        if self._own is None:
            self._content = library_path().read_bytes()
            self._own = place_in(self._state / LIBRARY_DIRECTORY, self._content)
        return self._own


LINGERING_AT_MOST_S: Final = 120.0
LEFT_WITHIN_S, LOOK_AGAIN_S = 20.0, 0.1  # PreStartContainer times out in the kubelet after 30 s
DAEMON_WITHIN_S = 5.0


@dataclass
class ContainerPreparation:
    """Prepares the files of a container, and waits for the daemons that it needs."""

    store: NodeFiles
    mps: MpsDaemons
    cdi: CdiFiles | None
    arbiter: ArbiterProcess

    def __post_init__(self) -> None:
        self._isolation = IsolationMounts(self.store.directory, self.store.usage)
        # When processes of a deleted pod were first found, by allocation directory
        self._lingering_since: dict[str, float] = {}

    def response(self, mode: str, answer: AllocateAnswer) -> pb.ContainerAllocateResponse:
        mounts = [_mount(CONTAINER_DIRECTORY, self.store.allocations / answer.directory)]
        mounts += self._isolation.mounts(mode, answer.directory)
        if PIPE_ENV in answer.environment:
            mounts.append(_mount(CONTAINER_PIPES, self.mps.pipes(answer.uuids), read_only=False))
        devices = self.cdi.devices(answer.uuids) if self.cdi is not None else ()
        return pb.ContainerAllocateResponse(
            envs=dict(answer.environment),
            mounts=mounts,
            cdi_devices=[pb.CDIDevice(name=name) for name in devices],
        )

    def prepare(self, directory: str, limits: Limits) -> None:
        """Create the directories that the container mounts, and record the Allocate response.

        Raises OSError if a directory or the record cannot be written.
        """
        self.store.write_answer(directory, limits)
        if (pipes := dict(limits.mounts).get(CONTAINER_PIPES)) is not None:
            Path(pipes).mkdir(parents=True, exist_ok=True)

    async def start(self, directory: str, limits: Limits, state: AllocationState) -> None:
        """Write the limits of a container that is about to start, once the node is ready for it.

        Raises NotYet if the container must not start yet, or if its limits would not be enforced.
        """
        before = self.store.started_ns(directory)
        await self._until_served(limits)
        await self._until_left(limits, state)
        if self.store.started_ns(directory) != before or not self.store.mine:
            raise NotYet("the call was repeated, or another agent serves this node by now")
        usage = self._isolation.prepare(limits.mode, directory, dict(limits.mounts))
        try:
            self.store.write_limits(directory, limits, usage)
            record_start(state, directory, limits, time.time_ns())
            self.arbiter.starting(directory, {gpu.uuid for gpu in limits.gpus})
        except (OSError, ValueError) as error:
            raise NotYet(f"the limits cannot be written: {error}") from error

    def is_started(self, directory: str, limits: Limits, state: AllocationState) -> bool:
        """Return whether a container may be running.

        It may be running if it was started with these limits, and if the files that it mounts
        exist. This method also installs the library at the paths that the container mounts. Raises
        NotYet if the container's limits would not be enforced.
        """
        before = self.store.limits(directory) if directory in state.started else None
        if before is None or msgspec.structs.replace(before, mounts=limits.mounts) != limits:
            return False
        usage = self._isolation.prepare(limits.mode, directory, dict(limits.mounts))
        return usage is None or usage.exists()

    async def _until_served(self, limits: Limits) -> None:
        """Wait for the container's MPS control daemon.

        A daemon for several GPUs starts when these GPUs are allocated.
        """
        gpus = tuple(share.uuid for share in limits.gpus)
        if limits.mode != Mode.MPS or not gpus:
            return
        try:
            async with asyncio.timeout(DAEMON_WITHIN_S):
                await self.mps.until_up(gpus)
        except TimeoutError as error:
            why = f": {problem}" if (problem := self.mps.problem) is not None else ""
            raise NotYet(
                f"the MPS control daemon of {', '.join(gpus)} does not run yet{why}"
            ) from error

    async def _until_left(self, limits: Limits, state: AllocationState) -> None:
        gpus = frozenset(share.uuid for share in limits.gpus)
        until = time.monotonic() + LEFT_WITHIN_S
        while gone := self._lingering(gpus, state.directories()):
            if time.monotonic() > until:
                raise NotYet(f"processes of the deleted pod {gone} still use memory of its GPUs")
            await asyncio.sleep(LOOK_AGAIN_S)

    def _lingering(self, uuids: Collection[str], present: Collection[str]) -> str:
        """Return the key of a deleted pod whose processes still use one of the GPUs, or "".

        Processes that have not ended within ``LINGERING_AT_MOST_S`` are ignored. ``present`` are
        the allocation directories of the existing pods.
        """
        now, usage = time.monotonic(), self.store.usage
        held = [name for name in usage.names() if name not in present and usage.is_held(name)]
        self._lingering_since = {name: self._lingering_since.get(name, now) for name in held}
        for name, since in self._lingering_since.items():
            limits = self.store.limits(name) if now - since < LINGERING_AT_MOST_S else None
            if limits is not None and any(gpu.uuid in uuids for gpu in limits.gpus):
                return limits.key
        return ""
