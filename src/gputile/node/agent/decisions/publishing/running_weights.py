"""Sums the weights of the containers that run on a GPU at one time.

The init containers of a pod run one after the other, and before its other containers. Sidecars run beside both.
"""

from dataclasses import dataclass

from gputile.core.devices.request import Phase


@dataclass(slots=True)
class _PodWeights:
    init: int = 0  # the greatest
    sidecars: int = 0
    apps: int = 0

    @property
    def most(self) -> int:
        return self.sidecars + max(self.init, self.apps)


class RunningWeights:
    """The weights of containers by the UUID of the GPU and the UID of the pod."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, _PodWeights]] = {}

    def add(self, uuid: str, uid: str, phase: Phase, weight: int) -> None:
        """Take in a container."""
        pod = self._pods.setdefault(uuid, {}).setdefault(uid, _PodWeights())
        match phase:
            case Phase.INIT:
                pod.init = max(pod.init, weight)
            case Phase.SIDECAR:
                pod.sidecars += weight
            case Phase.APP:
                pod.apps += weight

    def while_it_runs(self, uuid: str, uid: str, phase: Phase, weight: int) -> int:
        """Return the most that the weights add up to while a container runs that was taken in, its own too."""
        pods = self._pods[uuid]
        pod = pods[uid]
        own = {Phase.INIT: pod.sidecars + weight, Phase.SIDECAR: pod.most, Phase.APP: pod.sidecars + pod.apps}
        return own[phase] + sum(each.most for other, each in pods.items() if other != uid)
