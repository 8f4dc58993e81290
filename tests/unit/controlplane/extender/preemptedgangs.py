"""Nodes on which gangs run that have to leave for others, and what becomes of their evictions."""

from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL, POD_GROUP_LABEL
from gputile.kube.errors import AnswerLost, KubeError, ServerError, TooManyRequests
from tests.unit.controlplane.extender.preempting import PreemptingWorld

NODES = ("a", "b", "c")


class GangWorld(PreemptingWorld):
    """Gangs run on three nodes of two GPUs each. ``fates`` tells what happens to the next evictions of a pod."""

    def __init__(self) -> None:
        super().__init__(*NODES)
        self.asked: list[str] = []
        self.fates: dict[str, list[str]] = {}
        self.execute = self.cluster.evict
        self.cluster.evict = self.evict  # type: ignore[method-assign]

    async def evict(self, namespace: str, name: str, uid: str, why: str) -> None:
        """Execute an eviction or not, and answer or not, as the next fate of the pod says; all goes well without."""
        self.asked.append(name)
        fates = self.fates.get(name)
        fate = fates.pop(0) if fates else "ok"
        if fate == "429":
            raise TooManyRequests(429, "TooManyRequests", "the budget does not allow it")
        error: KubeError = AnswerLost("timed out")
        if "500" in fate:
            error = ServerError(500, "InternalError", "etcd is slow")
        if fate.startswith("never"):
            raise error
        await self.execute(namespace, name, uid, why)
        if fate != "ok":
            raise error

    async def gang(self, name: str, count: int, size: int, *, gib: int = 12, group: bool = False) -> list[str]:
        """Have the pods of a gang bound and seen; return their names."""
        names = [f"{name}{i}" for i in range(count)]
        for each in names:
            await self.member(each, name, size, gib=gib, group=group)
        return names

    async def member(self, pod_name: str, gang: str, size: int, *, gib: int = 12, group: bool = False) -> bool:
        """Create a pod of a gang; return whether it is bound."""
        pod = self.add(pod_name, gib)
        by_labels = {GANG_NAME_LABEL: gang, GANG_SIZE_LABEL: str(size)}
        pod.metadata.labels = {POD_GROUP_LABEL: gang} if group else by_labels
        bound = await self.schedule(pod_name)
        self.watch(pod_name)
        return bound

    def running(self, names: list[str]) -> list[str]:
        """Return which of the pods are there and stay."""
        pods = [(name, self.pod(name)) for name in names]
        return [name for name, pod in pods if pod is not None and pod.metadata.deletion_timestamp is None]

    async def live(self, seconds: int, step: int = 2) -> None:
        """Let time pass: pods that leave end, and the pod ``high`` is bound as soon as it may be."""
        for _ in range(0, seconds, step):
            for name in self.leaving():
                self.end(name)
            self.watch_all()
            await self.schedule("high")
            self.watch_all()
            await self.round(step)
