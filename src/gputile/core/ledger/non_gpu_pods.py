"""The CPU of pods that ask for no GPU: they hold no GPUs, and yet decide which GPUs can still be used."""

from gputile.api.core import Pod
from gputile.core.kube_predicates.pod_requests import cpu_request


class NonGpuPods:
    """The bound pods without a booking, and the milli-CPU that they ask for on each node."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, int]] = {}  # by UID: node, milli-CPU
        self._on_node: dict[str, int] = {}

    def on_node(self, name: str) -> int:
        """Return the milli-CPU that such pods ask for on a node."""
        return self._on_node.get(name, 0)

    def put(self, pod: Pod) -> tuple[tuple[str, int], ...]:
        """Take in a pod without a booking; return by how much that changes which nodes' milli-CPU in use."""
        node = "" if pod.finished else pod.spec.node_name
        cpu = cpu_request(pod.spec) if node else 0
        if cpu and self._held.get(pod.metadata.uid) == (node, cpu):
            return ()
        changes = self.drop(pod.metadata.uid)
        if not cpu:
            return changes
        self._held[pod.metadata.uid] = node, cpu
        return (*changes, self._add(node, cpu))

    def drop(self, uid: str) -> tuple[tuple[str, int], ...]:
        """Forget a pod; return by how much that changes which node's milli-CPU in use."""
        node, cpu = self._held.pop(uid, ("", 0))
        return (self._add(node, -cpu),) if cpu else ()

    def uids(self) -> frozenset[str]:
        """Return the UIDs of all of them."""
        return frozenset(self._held)

    def _add(self, node: str, cpu: int) -> tuple[str, int]:
        left = self._on_node.get(node, 0) + cpu
        if left:
            self._on_node[node] = left
        else:
            self._on_node.pop(node, None)
        return node, cpu
