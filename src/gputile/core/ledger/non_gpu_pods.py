"""Counts what pods that ask for no GPU take of nodes.

They hold no GPUs, and yet decide which GPUs can still be used.
"""

from gputile.api.core import Pod
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES, HostResources, host_request


class NonGpuPods:
    """The bound pods without a booking, and what they ask for on each node."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, HostResources]] = {}  # by UID
        self._on_node: dict[str, HostResources] = {}

    def on_node(self, name: str) -> HostResources:
        """Return what such pods ask for on a node."""
        return self._on_node.get(name, NO_HOST_RESOURCES)

    def put(self, pod: Pod) -> tuple[tuple[str, HostResources], ...]:
        """Take in a pod without a booking; return by how much that changes what is in use of which nodes."""
        node = "" if pod.finished else pod.spec.node_name
        host = host_request(pod) if node else NO_HOST_RESOURCES
        if host != NO_HOST_RESOURCES and self._held.get(pod.metadata.uid) == (node, host):
            return ()
        changes = self.drop(pod.metadata.uid)
        if host == NO_HOST_RESOURCES:
            return changes
        self._held[pod.metadata.uid] = node, host
        return (*changes, self._add(node, host))

    def drop(self, uid: str) -> tuple[tuple[str, HostResources], ...]:
        """Forget a pod; return by how much that changes what is in use of which node."""
        node, host = self._held.pop(uid, ("", NO_HOST_RESOURCES))
        return (self._add(node, HostResources(-host.cpu, -host.mib)),) if node else ()

    def uids(self) -> frozenset[str]:
        """Return the UIDs of all of them."""
        return frozenset(self._held)

    def _add(self, node: str, host: HostResources) -> tuple[str, HostResources]:
        before = self.on_node(node)
        left = HostResources(before.cpu + host.cpu, before.mib + host.mib)
        if left != NO_HOST_RESOURCES:
            self._on_node[node] = left
        else:
            self._on_node.pop(node, None)
        return node, host
