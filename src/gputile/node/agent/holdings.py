"""Derives the device table from the kubelet's checkpoint and the allocation directories.

The kubelet's checkpoint contains the IDs of each container, and the allocation directory that the
container mounts. The record in this directory contains the time of the allocation, the amounts of
memory and compute, and whether the container has started. The name of the directory links a
checkpoint entry to its record. The table is computed again when the checkpoint, a record or a pod
changes.

The kubelet writes all devices of a container to its checkpoint before it calls for the next
container, and before the container starts. An Allocate response that the checkpoint does not
contain by then was lost.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache

import msgspec

from gputile.api.well_known import GPU_CORE, GPU_MEMORY
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.device_table import (
    ContainerDevices,
    DeviceTable,
    KubeletEntry,
    Limits,
    Mounts,
    PodDevices,
    PreparedClaim,
    directory_name,
)
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import is_served

_MOST_KEPT = 1024
UNKNOWN_FOR_NS = 30 * 10**9  # after this time, the kubelet's checkpoint contains a response


def answer(
    state: AllocationState, caller: Caller, resource: str, ids: tuple[str, ...], now_ns: int
) -> str:
    """Record that a container is allocated ``ids``. Return the name of its allocation directory.

    All resources of a container have the same directory. No other container mounts the directory.
    """
    uid, container = caller.uid, caller.container
    used = {entry.directory for entry in state.written} | state.started
    name, devices = directory_name(uid or min(ids, default=""), container), {resource: ids}
    own = state.records.get(name)
    if own is not None and state.unread and resource in own.devices:
        own = None  # an init container, which the kubelet's list omits, may mount the directory
    if name not in used and uid and own is not None:
        if name in state.answered and own.uid == uid:
            devices = own.devices | devices
    else:
        while name in used or name in state.records:
            name += ".1"  # no name of a container has a dot
    namespace, _, of_pod = caller.key.partition("/")
    state.records[name] = Limits(
        namespace=namespace,
        pod=of_pod,
        uid=uid,
        container=container,
        mode=state.node_config.mode,
        unit_mib=state.unit_mib(caller.pod),
        devices=devices,
        phase=caller.phase,
        since_ns=now_ns,
    )
    state.answered.add(name)
    derive(state, now_ns)
    return name


def record_start(state: AllocationState, directory: str, limits: Limits, now_ns: int) -> None:
    """Record that a container was allowed to start with these ``limits``."""
    state.started |= {directory}
    if not limits.devices:  # the limits of a claim
        state.device_table = DeviceTable(state.device_table, state.started)
        return
    state.records[directory] = limits
    derive(state, now_ns)


def replace_prepared_claims(state: AllocationState, claims: Mapping[str, PreparedClaim]) -> None:
    """Replace the prepared claims with ``claims``. No other row of the table depends on them."""
    others = [held for held in state.device_table if not isinstance(held, PreparedClaim)]
    state.started -= {each.directory for uid, each in state.claims.items() if uid not in claims}
    state.claims = dict(claims)
    state.device_table = DeviceTable([*others, *claims.values()], state.started)


def drop_removed(state: AllocationState, directories: Set[str], now_ns: int) -> None:
    """Drop the records of allocation directories that were removed.

    ``directories`` are those that remain. No container of a removed directory can run.
    """
    state.records = {name: record for name, record in state.records.items() if name in directories}
    state.started &= directories
    derive(state, now_ns)


def forget_unwritten(state: AllocationState, resource: str) -> None:
    """Drop responses for ``resource`` that the kubelet did not checkpoint before its next call."""
    state.answered = {
        name
        for name in state.answered
        if name in state.records and resource not in state.records[name].devices
    }


def listed_entries(state: AllocationState) -> tuple[KubeletEntry, ...]:
    """Return the entries of the kubelet's list, for use if the checkpoint cannot be read.

    A container's directory is that of the latest response with its IDs. A container is omitted if
    the list does not contain the amounts that its known pod requests. Then the list is incomplete,
    or the container belongs to a newer pod of the same name.
    """
    last: dict[tuple[str, frozenset[str]], tuple[str, Mounts]] = {}
    for name, record in sorted(state.records.items(), key=lambda each: each[1].since_ns):
        last |= {
            (resource, frozenset(ids)): (name, record.mounts)
            for resource, ids in record.devices.items()
        }
    found = []
    for key, listed in state.listing.items():
        pod = state.pods.get(key)
        if pod is None:
            continue
        for container, resource, ids in listed.parts():
            asked, uid = pod.container_request(container), pod.kubelet_uid
            if all(
                pod.demand(asked, each) == len(listed.ids(container, each))
                for each in (GPU_MEMORY, GPU_CORE)
            ):
                directory, mounts = last.get((resource, ids), (directory_name(uid, container), ()))
                found.append(KubeletEntry(uid, container, resource, ids, directory, mounts))
    return tuple(found)


def derive(state: AllocationState, now_ns: int) -> None:
    """Compute the device table from the kubelet's checkpoint and the allocation directories."""
    state.answered = {
        name
        for name in state.answered - {entry.directory for entry in state.written}
        if name in state.records and now_ns - state.records[name].since_ns <= UNKNOWN_FOR_NS
    }
    pods = {pod.uid: pod for pod in state.pods.values()}
    held: dict[str, list[ContainerDevices]] = {}
    for uid, devices in (*_written(state, pods, now_ns), *_unwritten(state, pods)):
        held.setdefault(uid, []).append(devices)
    rows = [_row(state, uid, pods.get(uid), of_pod) for uid, of_pod in held.items()]
    state.device_table = DeviceTable([*rows, *state.claims.values()], state.started)


_Pods = dict[str, KnownPod]  # by UID
_Owned = tuple[str, ContainerDevices]  # the UID of the pod, and devices of one of its containers


def _written(state: AllocationState, own: _Pods, now_ns: int) -> Iterator[_Owned]:
    """Yield the devices in the kubelet's checkpoint, with the UID of the pod."""
    # A pod's own UID takes precedence, because users can forge the annotation of a mirror pod.
    pods = {pod.kubelet_uid: pod for pod in own.values()} | own
    for entry in state.written:
        record, pod = state.records.get(entry.directory), pods.get(entry.uid)
        if is_served(entry.resource) and not _has_gone(state, entry, pod, record, now_ns):
            asked = pod.container_request(entry.container) if pod is not None else None
            phase = next((each.phase for each in (asked, record) if each is not None), Phase.APP)
            ids, name = _ordered(entry.ids), entry.directory
            devices = ContainerDevices(entry.container, phase, entry.resource, ids, name)
            yield pod.uid if pod is not None else entry.uid, devices


def _unwritten(state: AllocationState, pods: _Pods) -> Iterator[_Owned]:
    """Yield devices that are missing in the kubelet's checkpoint.

    Either the kubelet has not written them yet, or it has lost the devices of a running container.
    """
    mounted = {entry.directory for entry in state.written}
    owners = {(entry.uid, entry.container) for entry in state.written}
    latest: dict[tuple[str, str, str], int] = {}
    for name in state.started & state.records.keys():
        record = state.records[name]
        for resource in record.devices:
            whose = record.uid, record.container, resource
            latest[whose] = max(latest.get(whose, 0), record.since_ns)
    for name, record in state.records.items():
        pod = pods.get(record.uid)
        if name in mounted or not _has_devices(state, name, record, pod, owners):
            continue
        for resource, ids in record.devices.items():
            if record.since_ns >= latest.get((record.uid, record.container, resource), 0):
                devices = ContainerDevices(record.container, record.phase, resource, ids, name)
                yield record.uid or name, devices


def _row(
    state: AllocationState, uid: str, pod: KnownPod | None, devices: Sequence[ContainerDevices]
) -> PodDevices:
    records = [state.records.get(each.directory) for each in devices]
    record = records[0]
    key = pod.key if pod is not None else record.key if record is not None else ""
    since_ns = min(each.since_ns if each is not None else 0 for each in records)
    row = state.new_row(uid, key, pod, since_ns)
    if record is not None and (pod is None or not pod.own_unit_mib):
        row = msgspec.structs.replace(row, unit_mib=record.unit_mib)
    made = msgspec.structs.replace(row, devices=tuple(devices))
    before = state.device_table.get(uid)
    # The previous row has already computed its GPUs.
    return before if before == made and before is not None else made


def _has_gone(
    state: AllocationState,
    entry: KubeletEntry,
    pod: KnownPod | None,
    record: Limits | None,
    now_ns: int,
) -> bool:
    """Return whether the devices of a checkpoint entry are free again.

    The kubelet does not write its checkpoint when a pod ends, but when it admits the next pod.
    """
    if pod is not None and pod.alive:
        return False
    shown = any(
        not entry.ids.isdisjoint(ids)
        for listed in state.listing.values()
        for _, resource, ids in listed.parts()
        if resource == entry.resource
    )
    if pod is not None:
        return not shown
    if entry.uid in state.pods.gone:
        return True
    if not state.pods.listed or not state.listing_complete or shown:
        return False
    if record is not None and record.key in state.listing and record.key not in state.pods:
        return False  # the pod is being admitted, and the watch has not reported it yet
    return record is None or now_ns - record.since_ns >= UNKNOWN_FOR_NS


def _has_devices(
    state: AllocationState,
    name: str,
    record: Limits,
    pod: KnownPod | None,
    given: Set[tuple[str, str]],
) -> bool:
    """Return whether a container has the devices of a directory that no checkpoint entry names.

    It has them if the kubelet has not checkpointed the response yet, or has lost the devices of a
    running container. It does not have them if the kubelet has allocated other devices to it, or
    no longer lists its pod. A kubelet that has just started may not know the pod yet.
    """
    if name not in state.started:
        return name in state.answered
    if pod is None:
        return bool(record.uid) and record.uid not in state.pods.gone and not state.pods.listed
    left = state.listing_complete and pod.key in state.once_listed - state.listing.keys()
    return pod.alive and not left and (pod.kubelet_uid, record.container) not in given


@lru_cache(_MOST_KEPT)
def _ordered(ids: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(ids))
