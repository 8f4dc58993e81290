"""Decides ``GetPreferredAllocation`` and ``Allocate``.

It steers the kubelet to the booked GPU, and checks what it chose.

For one container of one resource the kubelet calls ``GetPreferredAllocation`` (not always), ``Allocate``, and before
each start ``PreStartContainer`` (``container_start``).

A refused ``Allocate`` kills the pod for good, and its controller makes the next one at once. So ``Allocate`` is refused
only where a container would otherwise start with a GPU or an amount that is not its own: IDs of GPUs that are not
there, or of too many GPUs. GPUs without free capacity, or with pods that it must not share them with, are a matter of
time: the pod keeps its IDs, and ``PreStartContainer``, which the kubelet tries again and again, waits until they have
gone. Everything else is served as the kubelet chose, and the ledger corrected.
"""

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

import msgspec

from gputile.api.core import ObjectMeta, Pod
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState, ContainerCandidate, ExpectedAllocation
from gputile.node.agent.answers import AllocateAnswer, environment, pod_mib, shares_of
from gputile.node.agent.container_matcher import (
    candidates,
    runs_on,
    unlisted_candidates,
    worth_asking,
)
from gputile.node.agent.device_ids import DeviceIdError, Listing
from gputile.node.agent.device_table import DeviceEvent, DeviceStage
from gputile.node.agent.ownership import absorb, release, release_inits
from gputile.node.agent.pod_devices import (
    ContainerDevices,
    DeviceOwner,
    PodDevices,
    directory_name,
    has_any,
    pod_devices_for,
    stand_in,
    static_uid,
    unknown_uid,
    with_devices,
)
from gputile.node.agent.preferred_allocation import DeviceQuestion, PreferredAllocation, readable
from gputile.node.agent.rules import AllocationConflict, Occupied, rules_of


def unclear(state: AllocationState, listing: Listing | None, resource: str, size: int) -> list[str]:
    """Return the keys of pods to read from the API server before relying on what is known of them."""
    return worth_asking(_candidates(state, listing, resource, size))


def unnamed(state: AllocationState, resource: str, size: int) -> bool:
    """Return whether only the kubelet's list can tell who is asking."""
    return not _candidates(state, None, resource, size)


@dataclass(frozen=True, slots=True)
class DeviceAllocator:
    """Decides a call of the kubelet on the node's ``state`` and what the kubelet lists, None where it does not say.

    ``now`` is a time of the monotonic clock in seconds, ``now_ns`` Unix time in nanoseconds. ``written`` are the
    containers for which the kubelet's checkpoint has the IDs asked for, None where it cannot be read.
    """

    state: AllocationState
    listing: Listing | None
    now: float
    now_ns: int = 0
    written: Set[DeviceOwner] | None = None

    def preferred(self, resource: str, available: Iterable[str], must: Iterable[str], size: int) -> tuple[str, ...]:
        state, kept = self.state, frozenset(must)
        free = tuple(device_id for device_id in available if device_id not in kept)
        release_inits(state, frozenset(free), resource)
        candidate = next((c for c in _candidates(state, self.listing, resource, size) if c.known), None)
        blank = self._pod_devices(candidate, "")
        release(state, free, resource, self.listing, blank.uid)
        in_use = _in_use(state, free, resource, blank.uid, candidate)
        offered = (*kept, *(device_id for device_id in free if device_id not in in_use))

        def servable(ids: tuple[str, ...]) -> bool:
            try:
                held, devices, gpus = self._given(candidate, blank, resource, ids)
                rules_of(state).check(held, devices, gpus)
            except AllocationConflict:
                return False
            return True

        near = self._near(resource) if candidate is None else ()
        asked = DeviceQuestion(blank, candidate, resource, readable(offered), readable(kept), size, near)
        ids = PreferredAllocation(state, asked).choose(servable)
        state.admission.expected = ExpectedAllocation(resource, frozenset(ids), candidate, self.now)
        state.admission.last_uid = blank.uid
        return ids

    def allocate(
        self, resource: str, ids: tuple[str, ...], *, may_wait: bool = False
    ) -> tuple[AllocateAnswer, PodDevices]:
        """Take ``ids`` as given to the container that is being admitted; return what it gets, and what its pod holds.

        What others on the GPUs forbid is no reason to fail the pod if it ``may_wait``: ``PreStartContainer`` keeps it
        from starting until they are gone.

        Raises:
            AllocationConflict: they cannot be served.
        """
        state = self.state
        expected, state.admission.expected = state.admission.expected, None
        if expected is not None and expected.is_for(resource, ids, self.now):
            candidate = expected.candidate
        else:
            candidate = self._asking(resource, ids)
        pod_devices = self._pod_devices(candidate, min(ids, default=""))
        if candidate is not None and (pod := candidate.pod) is not None:
            for former in state.device_table.holders(resource, ids):
                if stand_in(former.uid) and former.key == pod_devices.key:
                    pod_devices = absorb(state, former, pod, pod_devices)
                    state.device_table.apply(DeviceEvent.ANSWERED, pod_devices)
        release(state, ids, resource, self.listing, pod_devices.uid)
        before = {i for p in pod_devices.devices if p.resource == resource and p.phase is Phase.INIT for i in p.ids}
        moved = _moved(resource, () if _is_init(candidate) else ids)
        pod_devices = state.device_table.kept_after(pod_devices, DeviceEvent.MOVED, moved)
        pod_devices, devices, gpus = self._given(candidate, pod_devices, resource, ids)
        try:
            rules_of(state).check(pod_devices, devices, gpus, reused=before.issuperset(ids))
        except Occupied:
            if not may_wait:
                raise
        state.device_table.apply(DeviceEvent.MOVED, pod_devices, moved)
        state.device_table.apply(DeviceEvent.ANSWERED, pod_devices)
        state.admission.last_uid = pod_devices.uid
        return _grant(state, candidate, pod_devices, devices), pod_devices

    def _asking(self, resource: str, ids: tuple[str, ...]) -> ContainerCandidate | None:
        """Return who asks for just these IDs; those of an init container can only be for its own pod."""
        state, size, again = self.state, len(ids), self._asking_again(resource, ids)
        found = [c for c in _candidates(state, self.listing, resource, size) if c.known]
        owners = {
            pod_devices.uid
            for pod_devices in state.device_table.holders(resource, ids)
            for p in pod_devices.devices
            if p.phase is Phase.INIT and p.resource == resource and not set(ids).isdisjoint(p.ids)
        }
        own = [c for c in found if c.pod is not None and c.pod.uid in owners and not runs_on(c, state.device_table)]
        if self.listing is None and not own:
            # Several pods may be asking for so many; only that of the init container gets its very IDs.
            pods = {key: pod for key, pod in state.pods.items() if pod.uid in owners}
            next_ones = [
                c
                for c in unlisted_candidates(pods, state.device_table, resource, size)
                if not runs_on(c, state.device_table)
            ]
            own = [c for c in again if not _is_init(c)] or next_ones or again
        return next(iter((*(c for c in again if not self._is_written(c)), *own, *found)), None)

    def _is_written(self, candidate: ContainerCandidate) -> bool:
        """Return whether the kubelet has written down the IDs for a container that was answered with them.

        It does so before it asks for the next one, such as one that takes over the IDs of an init container. Where
        nobody can say, it is taken to have.
        """
        uid = candidate.pod.kubelet_uid if candidate.pod is not None else ""
        if self.written is None:
            return True
        return (uid, candidate.container) in {(owner.uid, owner.container) for owner in self.written}

    def _asking_again(self, resource: str, ids: tuple[str, ...]) -> list[ContainerCandidate]:
        """Return the container that was answered with just these IDs before.

        The gateway repeats a call during which an agent died; it is the first call of the next agent. A container that
        was let start does not ask again.
        """
        state = self.state
        if state.admission.last_uid:
            return []
        return [
            ContainerCandidate(pod.key, devices.container, pod, request, guessed=self.listing is None)
            for pod_devices in state.device_table.holders(resource, ids)
            if (pod := state.pod_of(pod_devices)) is not None and pod.alive
            if self.listing is None or pod.key in self.listing
            for devices in pod_devices.devices
            if devices.resource == resource and set(devices.ids) == set(ids)
            if state.device_table.stage(devices.directory) is DeviceStage.ANSWERED
            if (request := pod.container_request(devices.container)) is not None
        ]

    def _pod_devices(self, candidate: ContainerCandidate | None, mark: str) -> PodDevices:
        """Return what the candidate's pod holds so far; under a stand-in where the pod is not known."""
        state = self.state
        if candidate is None:
            uid = unknown_uid(mark, self.now_ns)
            return pod_devices_for(uid, None, "", state.node_config, "", self.now_ns)
        pod, key = candidate.pod, candidate.key
        uid = pod.uid if pod else static_uid(key)
        namespace, _, name = key.partition("/")
        meta = ObjectMeta(namespace=namespace, name=name)
        group = pod.trust_group if pod else state.configuration.trust_group(Pod(metadata=meta))
        return state.device_table.get(uid) or pod_devices_for(uid, pod, key, state.node_config, group, self.now_ns)

    def _near(self, resource: str) -> tuple[int, ...]:
        """Return the GPUs of the last answer, if that was for nobody knows whom, and another resource than this one.

        The kubelet asks for all resources of a container one after the other.
        """
        last = self.state.device_table.get(self.state.admission.last_uid)
        if last is None or last.identified or resource in last.slots:
            return ()
        return tuple(sorted(last.indices))

    def _given(
        self, candidate: ContainerCandidate | None, pod_devices: PodDevices, resource: str, ids: tuple[str, ...]
    ) -> tuple[PodDevices, ContainerDevices, int]:
        """Return the pod's devices with ``ids``, those of the container, and how many GPUs it asks for.

        Raises:
            AllocationConflict: one is no device ID.
        """
        container, pod, asked = (
            (candidate.container, candidate.pod, candidate.request) if candidate else ("", None, None)
        )
        directory = self._directory(candidate, pod_devices.uid, ids)
        phase, guessed = asked.phase if asked else Phase.APP, candidate is not None and candidate.guessed
        devices = ContainerDevices(container, phase, resource, ids, directory, guessed=guessed)
        try:
            pod_devices = with_devices(pod_devices, devices, self.state.node_config)
        except DeviceIdError as error:
            raise AllocationConflict(str(error)) from error
        return pod_devices, devices, pod.request.shape.gpus if pod and pod.request else 1

    def _directory(self, candidate: ContainerCandidate | None, uid: str, ids: tuple[str, ...]) -> str:
        """Return the allocation directory for ``ids``.

        Where it is not certain who asks, no other answer has it, not even for the container's other resource: whoever
        is answered mounts it for good.
        """
        container = candidate.container if candidate is not None else ""
        own = directory_name(unknown_uid(min(ids, default=""), self.now_ns), container)
        if candidate is None or candidate.guessed or not container:
            return own
        return self.state.device_table.directory_for(uid, container, own if candidate.pod is None else "")


def _grant(
    state: AllocationState, candidate: ContainerCandidate | None, pod_devices: PodDevices, devices: ContainerDevices
) -> AllocateAnswer:
    pod, asked = (candidate.pod, candidate.request) if candidate else (None, None)
    indices = state.gpus(pod_devices, devices.container, pod)
    shares = shares_of(state.node_config, pod_devices, devices.container, asked, indices)
    uuids = state.node_config.uuids(devices.resource, devices.ids, indices)
    mib = pod_mib(pod_devices, pod, indices[0]) if indices else 0
    threads = pod.mps_threads if pod else 0
    variables = environment(state.node_config, uuids, shares, pod_devices.unit_mib, mib, threads)
    return AllocateAnswer(variables, devices.directory, uuids)


def answered(
    state: AllocationState, uid: str, resource: str, directory: str, mounts: tuple[tuple[str, str], ...]
) -> None:
    """Remember what the container with this allocation directory was told to mount, for ``resource``."""
    pod_devices = state.device_table.get(uid)
    for devices in pod_devices.devices if pod_devices is not None else ():
        if pod_devices is not None and (devices.resource, devices.directory) == (resource, directory):
            pod_devices = pod_devices.replaced(msgspec.structs.replace(devices, mounts=mounts))
            state.device_table.apply(DeviceEvent.ANSWERED, pod_devices)


def _candidates(state: AllocationState, listing: Listing | None, resource: str, size: int) -> list[ContainerCandidate]:
    if listing is None and not state.kubelet.settled:
        return []  # a kubelet that has just started may ask again for what one before it was answered
    if listing is None:
        return unlisted_candidates(state.pods, state.device_table, resource, size, state.admission.last_uid)
    return candidates(listing, state.pods, state.device_table, resource, size, state.admission.last_uid)


def _moved(resource: str, ids: tuple[str, ...]) -> Callable[[ContainerDevices], bool]:
    """Return which devices of a pod lose ``ids`` to another container of it: the kubelet has forgotten that they run.

    Their allocation directories stay as long as the pod. Init containers hand theirs on.
    """

    def moved(devices: ContainerDevices) -> bool:
        return devices.phase is not Phase.INIT and has_any(resource, ids, devices)

    return moved


def _in_use(
    state: AllocationState, ids: Iterable[str], resource: str, uid: str, candidate: ContainerCandidate | None
) -> set[str]:
    """Return IDs that this container may not use, even if the kubelet calls them free; others may be among them.

    An init container may use IDs of its pod's other containers: they take them over, or it does not run again.
    """
    own = candidate.container if candidate else ""
    apart = not _is_init(candidate)
    return {
        device_id
        for pod_devices in state.device_table.holders(resource, ids)
        for devices in pod_devices.devices
        if devices.resource == resource
        and (pod_devices.uid != uid or (apart and devices.container != own and state.device_table.is_fixed(devices)))
        for device_id in devices.ids
    }


def _is_init(candidate: ContainerCandidate | None) -> bool:
    return candidate is not None and candidate.request is not None and candidate.request.phase is Phase.INIT
