"""Names the directories of allocations, which the kubelet's checkpoint has beside the devices."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class DeviceOwner:
    """A container for which the kubelet's checkpoint has devices, by the UID that the kubelet has for its pod.

    ``directory`` is the name of the allocation directory that it mounts, "" where the answer cannot be read.
    """

    uid: str
    container: str
    directory: str = ""


def directory_name(uid: str, container: str) -> str:
    """Return the name of the directory of one container's allocation: the same for both of its resources."""
    if uid.replace("-", "").isalnum():
        return f"{uid}-{container}"
    return f"{hashlib.sha256(uid.encode()).hexdigest()[:32]}-{container or 'container'}"
