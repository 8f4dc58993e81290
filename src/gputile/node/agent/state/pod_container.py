"""Names a container of a pod for figures about it."""

from typing import NamedTuple


class PodContainer(NamedTuple):
    """A container, by the names of its pod; ``uid`` is the pod's, which tells it from a predecessor of its name."""

    uid: str
    namespace: str
    pod: str
    name: str
