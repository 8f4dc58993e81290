"""Decides ``PreStartContainer``: whether a container may start, and with which limits.

GPUs without free capacity, or with pods that the container must not share them with, are a matter of time: the
container waits until the pods that were on them before have gone.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass

from gputile.node.agent.decisions.answers.allocate import Limits, shares_of
from gputile.node.agent.decisions.calls.validation import AllocationRules, Occupied, rules_of
from gputile.node.agent.decisions.ownership import sync_with_listing
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_ids import Listing
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.pod_devices import ContainerDevices, DeviceOwner, PodDevices, stand_in


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
