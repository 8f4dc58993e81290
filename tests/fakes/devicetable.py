"""A state whose device table is set by a test, in place of one that is derived."""

from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import DeviceTable, PodDevices


def hold(state: AllocationState, *pods: PodDevices) -> None:
    """Let pods hold devices beside those that do already."""
    uids = {each.uid for each in pods}
    others = [each for each in state.device_table if each.uid not in uids]
    state.device_table = DeviceTable([*others, *pods], state.device_table.started)


def release(state: AllocationState, uid: str) -> None:
    """Let a pod be gone; it need not have been there."""
    state.device_table = DeviceTable((each for each in state.device_table if each.uid != uid), state.started)
