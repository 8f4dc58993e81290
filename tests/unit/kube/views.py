"""A consumer of reflector events: the simplest store there is."""

from gputile.api.core import Pod
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject, WatchEvent

PODS = "/api/v1/pods"


def pod(name: str, **labels: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "labels": labels}, "spec": {}}


def unreadable_pod(name: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"}, "spec": {"containers": 7}}


class View:
    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.unreadable: set[str] = set()
        self.events: list[WatchEvent[Pod]] = []

    def __call__(self, event: WatchEvent[Pod]) -> None:
        self.events.append(event)
        match event:
            case Replaced(objects, unreadable):
                self.versions = {each.metadata.name: each.metadata.resource_version for each in objects}
                self.unreadable = {each.name for each in unreadable}
            case Applied(each):
                self.versions[each.metadata.name] = each.metadata.resource_version
                self.unreadable.discard(each.metadata.name)
            case Deleted(each):
                self.versions.pop(each.metadata.name, None)
                self.unreadable.discard(each.metadata.name)
            case UnreadableObject(name=name):
                self.versions.pop(name, None)
                self.unreadable.add(name)
