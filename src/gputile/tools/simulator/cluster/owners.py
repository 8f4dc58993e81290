"""Names the objects that pods come from, among manifests and in a cluster alike."""

from typing import NamedTuple

from gputile.api.core import Pod
from gputile.tools.simulator.documents.manifests import Manifest


class Owner(NamedTuple):
    """An object that has pods, a Pod itself among them; ``group`` is the API group of its kind, "" for the core's."""

    group: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def owner_in(manifest: Manifest) -> Owner:
    """Return an object as the owner of its pods."""
    return Owner(manifest.group, manifest.kind, *manifest.namespaced_name)


def owner_of(pod: Pod) -> Owner:
    """Return the object that a pod comes from, its controller; a Pod without one is its own."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            return Owner(owner.api_version.rpartition("/")[0], owner.kind, pod.metadata.namespace, owner.name)
    return Owner("", "Pod", pod.metadata.namespace, pod.metadata.name)
