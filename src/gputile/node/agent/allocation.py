"""Decides ``Allocate``.

For one container of one resource the kubelet calls ``GetPreferredAllocation`` (not always, ``preferred_allocation``),
``Allocate``, and before each start ``PreStartContainer`` (``container_start``).

A refused ``Allocate`` kills the pod for good, and its controller makes the next one at once. So ``Allocate`` goes by
the IDs, and is refused only where they can never be served: those of GPUs that are not there, or of too many.
Everything that is a matter of time waits at ``PreStartContainer``, which the kubelet tries again and again.
"""

import msgspec

from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.answers import AllocateAnswer, environment
from gputile.node.agent.holdings import answer, derive
from gputile.node.agent.rules import AllocationConflict, Occupied, rules_of


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
