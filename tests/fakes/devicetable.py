"""What happens to the devices in a ``DeviceTable``, in words of the tests."""

from gputile.node.agent.device_table import DeviceEvent, DeviceTable


def release(table: DeviceTable, uid: str) -> None:
    """Let a pod be gone; it need not have been there."""
    held = table.get(uid)
    if held is not None:
        table.apply(DeviceEvent.POD_GONE, held)


def let_start(table: DeviceTable, directory: str) -> None:
    """Let the container with this allocation directory start."""
    table.apply_by_directory(DeviceEvent.LET_START, [directory])
