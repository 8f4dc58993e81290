"""Decides ``GetPreferredAllocation`` and ``Allocate``.

For one container of one resource the kubelet calls ``GetPreferredAllocation`` (not always), ``Allocate``, and before
each start ``PreStartContainer`` (``container_start``).

A refused ``Allocate`` kills the pod for good, and its controller makes the next one at once. So ``Allocate`` goes by
the IDs, and is refused only where they can never be served: those of GPUs that are not there, or of too many.
Everything that is a matter of time waits at ``PreStartContainer``, which the kubelet tries again and again.
"""

from collections.abc import Iterable

import msgspec

from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.answers import AllocateAnswer, environment
from gputile.node.agent.device_ids import by_gpu
from gputile.node.agent.device_table import ContainerDevices, PodDevices
from gputile.node.agent.holdings import answer, derive
from gputile.node.agent.preferred_allocation import DeviceQuestion, PreferredAllocation
from gputile.node.agent.rules import AllocationConflict, Occupied, rules_of


def preferred(
    state: AllocationState,
    caller: Caller | None,
    resource: str,
    available: Iterable[str],
    must: Iterable[str],
    size: int,
) -> tuple[str, ...]:
    """Return the IDs that the kubelet should take."""
    kept = frozenset(must)
    free = tuple(device_id for device_id in available if device_id not in kept)
    blank = _row_of(state, caller)
    in_use = _in_use(state, free, resource, blank.uid, caller)
    offered = (*kept, *(device_id for device_id in free if device_id not in in_use))

    def servable(ids: tuple[str, ...]) -> bool:
        container, pod, asked = (caller.container, caller.pod, caller.request) if caller else ("", None, None)
        devices = ContainerDevices(container, asked.phase if asked else Phase.APP, resource, ids)
        gpus = pod.request.shape.gpus if pod and pod.request else 1
        try:
            rules_of(state).check(blank.replaced(devices), devices, gpus)
        except AllocationConflict:
            return False
        return True

    near = _near(state, resource) if caller is None else ()
    asked = DeviceQuestion(blank, caller, resource, by_gpu(offered), by_gpu(kept), size, near)
    return PreferredAllocation(state, asked).choose(servable)


def allocate(
    state: AllocationState, caller: Caller | None, resource: str, ids: tuple[str, ...], now_ns: int
) -> AllocateAnswer:
    """Take ``ids`` as given to the container that is being admitted; return what it gets.

    Raises:
        AllocationConflict: they can never be served.
    """
    state.admission.expected = None
    handed_on = {
        device_id
        for held in state.device_table.holders(resource, ids)
        for each in held.devices
        if each.resource == resource and each.phase is Phase.INIT
        for device_id in each.ids
    }
    before = state.records.copy(), set(state.admission.answered)
    directory = answer(state, caller, resource, ids, now_ns)
    row, devices = next(
        (held, each)
        for held in state.device_table
        for each in held.devices
        if (each.directory, each.resource) == (directory, resource)
    )
    pod = caller.pod if caller is not None else None
    gpus = pod.request.shape.gpus if pod is not None and pod.request is not None else 1
    try:
        rules_of(state).check(row, devices, gpus, reused=handed_on.issuperset(ids))
    except Occupied:
        pass
    except AllocationConflict:
        state.records, state.admission.answered = before
        derive(state, now_ns)
        raise
    state.admission.last_uid = row.uid
    on = state.gpus(row, devices.container, pod)
    shares = state.shares(row, devices.container)
    uuids = state.node_config.visible(ids, on)
    mib = row.mib(min(on, default=""))
    if pod is not None and pod.request is not None:
        mib = pod.request.shape.mib
    threads = pod.mps_threads if pod is not None else 0
    variables = environment(state.node_config, uuids, shares, row.unit_mib, mib, threads)
    return AllocateAnswer(variables, directory, uuids)


def told_to_mount(state: AllocationState, directory: str, mounts: tuple[tuple[str, str], ...]) -> None:
    """Remember what the container with this allocation directory was told to mount."""
    state.records[directory] = msgspec.structs.replace(state.records[directory], mounts=mounts)


def _row_of(state: AllocationState, caller: Caller | None) -> PodDevices:
    """Return what the caller's pod holds so far."""
    config, pod = state.node_config, caller.pod if caller is not None else None
    if pod is not None and (held := state.device_table.get(pod.uid)) is not None:
        return held
    key = caller.key if caller is not None else ""
    namespace, _, name = key.partition("/")
    unit = pod.request.unit_mib if pod is not None and pod.request is not None else 0
    group = pod.trust_group if pod is not None else state.trust_group(namespace)
    return PodDevices(
        pod.uid if pod is not None else "",
        namespace,
        name,
        unit or config.effective_mode.unit_mib,
        config.mode.value,
        group,
        0,
        identified=bool(key),
        known=pod is not None,
    )


def _near(state: AllocationState, resource: str) -> tuple[str, ...]:
    """Return the GPUs of the last answer, if that was for nobody knows whom, and another resource than this one.

    The kubelet asks for all resources of a container one after the other.
    """
    last = state.device_table.get(state.admission.last_uid)
    if last is None or last.identified or resource in last.ids_by_gpu:
        return ()
    return tuple(sorted(last.gpus))


def _in_use(state: AllocationState, ids: Iterable[str], resource: str, uid: str, caller: Caller | None) -> set[str]:
    """Return IDs that this container may not use, even if the kubelet calls them free.

    An init container may use IDs of its pod's other containers: they take them over, or it does not run again.
    """
    own = caller.container if caller is not None else ""
    init = caller is not None and caller.request is not None and caller.request.phase is Phase.INIT
    table = state.device_table
    return {
        device_id
        for held in table.holders(resource, ids)
        for each in held.devices
        if each.resource == resource
        and (
            held.uid != uid
            or (not init and each.container != own and each.phase is not Phase.INIT and each.directory in table.started)
        )
        for device_id in each.ids
    }
