"""Decides ``GetPreferredAllocation`` and ``Allocate``: steers the kubelet to the booked GPU, and checks what it chose.

For one container of one resource the kubelet calls ``GetPreferredAllocation`` (not always), ``Allocate``, and before
each start ``PreStartContainer`` (``container_start``).

A refused ``Allocate`` kills the pod for good, and its controller makes the next one at once. So ``Allocate`` is refused
only where a container would otherwise start with a GPU or an amount that is not its own: IDs of GPUs that are not
there, or of too many GPUs. GPUs without free capacity, or with pods that it must not share them with, are a matter of
time: the pod keeps its IDs, and ``PreStartContainer``, which the kubelet tries again and again, waits until they have
gone. Everything else is served as the kubelet chose, and the ledger corrected.
"""

from collections.abc import Iterable

import msgspec

from gputile.api.core import ObjectMeta, Pod
from gputile.core.devices.request import Phase
from gputile.node.agent.allocate.allocation_state import AllocationState, ExpectedAllocation
from gputile.node.agent.allocate.answer import Grant, environment, pod_mib, shares_of
from gputile.node.agent.allocate.container_matcher import (
    ContainerCandidate,
    candidates,
    unlisted_candidates,
    worth_asking,
)
from gputile.node.agent.allocate.device_id_sets import readable
from gputile.node.agent.allocate.device_ids import DeviceIdError
from gputile.node.agent.allocate.device_stage import DeviceEvent
from gputile.node.agent.allocate.pod_devices import (
    ContainerDevices,
    PodDevices,
    holding_for,
    stand_in,
    static_uid,
    unknown_uid,
    with_part,
)
from gputile.node.agent.allocate.preferred_allocation import DeviceQuestion, PreferredAllocation
from gputile.node.agent.allocate.validation import AllocationConflict, Occupied, validate
from gputile.node.agent.reconcile.listing import Listing


def unclear(state: AllocationState, listing: Listing | None, resource: str, size: int) -> list[str]:
    """Return the keys of pods to read from the API server before relying on what is known of them."""
    return worth_asking(_candidates(state, listing, resource, size))


def preferred_devices(
    state: AllocationState,
    resource: str,
    available: Iterable[str],
    must: Iterable[str],
    size: int,
    listing: Listing | None,
    now: float,
) -> tuple[str, ...]:
    """Return the IDs that the kubelet should take."""
    kept = frozenset(must)
    free = tuple(device_id for device_id in available if device_id not in kept)
    candidate = next((c for c in _candidates(state, listing, resource, size) if c.known), None)
    blank = _holding(state, candidate, "", 0)
    state.release(free, resource, listing, blank.uid)
    in_use = _in_use(state, free, resource, blank.uid, candidate)
    offered = (*kept, *(device_id for device_id in free if device_id not in in_use))

    def servable(ids: tuple[str, ...]) -> bool:
        try:
            _verified(state, candidate, blank, resource, ids, reused=False)
        except AllocationConflict:
            return False
        return True

    asked = DeviceQuestion(blank, candidate, resource, readable(offered), readable(kept), size)
    ids = PreferredAllocation(state, asked).choose(servable)
    state.expected = ExpectedAllocation(resource, frozenset(ids), candidate, now)
    state.last_uid = blank.uid
    return ids


def allocate_devices(
    state: AllocationState,
    resource: str,
    ids: tuple[str, ...],
    listing: Listing | None,
    now: float,
    now_ns: int,
    *,
    may_wait: bool = False,
) -> tuple[Grant, PodDevices]:
    """Take ``ids`` as given to the container that is being admitted; return what it gets, and what its pod holds.

    What others on the GPUs forbid is no reason to fail the pod if it ``may_wait``: ``PreStartContainer`` keeps it
    from starting until they are gone.

    Raises:
        AllocationConflict: they cannot be served.
    """
    expected, state.expected = state.expected, None
    if expected is not None and expected.is_for(resource, ids, now):
        candidate = expected.candidate
    else:
        candidate = _asking(state, resource, ids, listing)
    holding = _with_stand_ins(state, _holding(state, candidate, min(ids, default=""), now_ns), candidate, resource, ids)
    state.release(ids, resource, listing, holding.uid)
    before = {i for p in holding.parts if p.resource == resource and p.phase is Phase.INIT for i in p.ids}
    if not _is_init(candidate):
        holding = _without_moved(state, holding, resource, ids)
    reused = before.issuperset(ids)
    holding, part = _verified(state, candidate, holding, resource, ids, reused=reused, may_wait=may_wait)
    state.holdings.put(holding)
    state.last_uid = holding.uid
    return _grant(state, candidate, holding, part), holding


def _grant(
    state: AllocationState, candidate: ContainerCandidate | None, holding: PodDevices, part: ContainerDevices
) -> Grant:
    """Return what the container is given with its devices."""
    pod, asked = (candidate.pod, candidate.part) if candidate else (None, None)
    indices = state.gpus(holding, part.container, pod)
    shares = shares_of(state.setup, holding, part.container, asked, indices)
    uuids = state.setup.uuids(part.resource, part.ids, indices)
    mib = pod_mib(holding, pod, indices[0]) if indices else 0
    threads = pod.mps_threads if pod else 0
    granted = environment(state.setup, uuids, shares, holding.unit_mib, mib, threads)
    return Grant(granted, part.directory, uuids)


def answered(
    state: AllocationState, uid: str, resource: str, directory: str, mounts: tuple[tuple[str, str], ...]
) -> None:
    """Remember what the container with this allocation directory was told to mount, for ``resource``."""
    holding = state.holdings.get(uid)
    for part in holding.parts if holding is not None else ():
        if holding is not None and (part.resource, part.directory) == (resource, directory):
            holding = holding.replaced(msgspec.structs.replace(part, mounts=mounts))
            state.holdings.put(holding)


def _candidates(state: AllocationState, listing: Listing | None, resource: str, size: int) -> list[ContainerCandidate]:
    if listing is None:
        return unlisted_candidates(state.pods, state.holdings, resource, size)
    return candidates(listing, state.pods, state.holdings, resource, size, state.last_uid)


def _asking(
    state: AllocationState, resource: str, ids: tuple[str, ...], listing: Listing | None
) -> ContainerCandidate | None:
    """Return who asks for just these IDs; those of an init container can only be for its own pod."""
    found = [c for c in _candidates(state, listing, resource, len(ids)) if c.known]
    owners = {
        holding.uid
        for holding in state.holdings.holders(resource, ids)
        if any(
            p.phase is Phase.INIT and p.resource == resource and not set(ids).isdisjoint(p.ids) for p in holding.parts
        )
    }
    own = [c for c in found if c.pod is not None and c.pod.uid in owners and not _runs_on(state, c)]
    if listing is None and not own:
        # Several pods may be asking for so many; only that of the init container gets its very IDs.
        pods = {key: pod for key, pod in state.pods.items() if pod.uid in owners}
        own = [c for c in unlisted_candidates(pods, state.holdings, resource, len(ids)) if not _runs_on(state, c)]
    return next(iter((*own, *found)), None)


def _runs_on(state: AllocationState, candidate: ContainerCandidate) -> bool:
    """Return whether it is a container that was let start and is left alone, as no init container is."""
    uid = candidate.pod.uid if candidate.pod is not None else ""
    return not _is_init(candidate) and state.holdings.stage_of(uid, candidate.container).may_run


def _holding(state: AllocationState, candidate: ContainerCandidate | None, mark: str, now_ns: int) -> PodDevices:
    """Return what the candidate's pod holds so far; under a stand-in where the pod is not known."""
    if candidate is None:
        return holding_for(unknown_uid(mark), None, "", state.setup, "", now_ns)
    pod, key = candidate.pod, candidate.key
    uid = pod.uid if pod else static_uid(key)
    namespace, _, name = key.partition("/")
    meta = ObjectMeta(namespace=namespace, name=name)
    group = pod.trust_group if pod else state.configuration.trust_group(Pod(metadata=meta))
    return state.holdings.get(uid) or holding_for(uid, pod, key, state.setup, group, now_ns)


def _with_stand_ins(
    state: AllocationState,
    holding: PodDevices,
    candidate: ContainerCandidate | None,
    resource: str,
    ids: tuple[str, ...],
) -> PodDevices:
    """Take over what the same pod was answered while the API server did not know it yet."""
    pod = candidate.pod if candidate else None
    if pod is None:
        return holding
    for former in state.holdings.holders(resource, ids):
        if stand_in(former.uid) and former.uid != holding.uid and former.key == holding.key:
            for part in former.parts:
                if holding.part(part.container, part.resource) is None:
                    asked = pod.part(part.container)
                    known = msgspec.structs.replace(part, phase=asked.phase) if asked else part
                    holding = with_part(holding, known, state.setup)
            state.holdings.drop(former.uid)
            state.holdings.put(holding)
    return holding


def _verified(
    state: AllocationState,
    candidate: ContainerCandidate | None,
    holding: PodDevices,
    resource: str,
    ids: tuple[str, ...],
    *,
    reused: bool,
    may_wait: bool = False,
) -> tuple[PodDevices, ContainerDevices]:
    container, pod, asked = (candidate.container, candidate.pod, candidate.part) if candidate else ("", None, None)
    phase = asked.phase if asked else Phase.APP
    try:
        directory = state.holdings.directory_for(holding.uid, container)
        part = ContainerDevices(container, phase, resource, ids, directory)
        holding = with_part(holding, part, state.setup)
    except DeviceIdError as error:
        raise AllocationConflict(str(error)) from error
    gpus, most = pod.request.shape.gpus if pod and pod.request else 1, state.configuration.max_pods_per_gpu
    try:
        validate(
            state.setup, state.holdings, holding, container, resource, gpus, most, state.still_to_come, reused=reused
        )
    except Occupied:
        if not may_wait:
            raise
    return holding, part


def _without_moved(state: AllocationState, holding: PodDevices, resource: str, ids: tuple[str, ...]) -> PodDevices:
    """Take away what containers of the pod had of ``ids``: the kubelet has forgotten that they run with them.

    Their allocation directories stay as long as the pod. Init containers hand theirs on.
    """

    def moved(part: ContainerDevices) -> bool:
        return part.phase is not Phase.INIT and part.resource == resource and not set(ids).isdisjoint(part.ids)

    return state.holdings.kept_after(holding, DeviceEvent.MOVED, moved)


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
        for holding in state.holdings.holders(resource, ids)
        for part in holding.parts
        if part.resource == resource
        and (holding.uid != uid or (apart and part.container != own and state.holdings.is_fixed(part)))
        for device_id in part.ids
    }


def _is_init(candidate: ContainerCandidate | None) -> bool:
    return candidate is not None and candidate.part is not None and candidate.part.phase is Phase.INIT
