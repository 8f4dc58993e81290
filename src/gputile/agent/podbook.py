"""The pods of this node by key, kept up to date by a watch that may lag behind what was read directly."""

from collections.abc import Iterable, MutableMapping

from gputile.agent.pods import KnownPod, known_pod
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod

Book = MutableMapping[str, KnownPod]


def apply_pod(book: Book, pod: Pod, configuration: Configuration) -> None:
    """Take in a pod, unless something newer is known under its name: of this pod, or of the next one so named."""
    held = book.get(pod.key)
    if held is None or _newer(pod, held.pod):
        book[pod.key] = known_pod(pod, configuration)


def remove_pod(book: Book, pod: Pod) -> None:
    """Forget a pod that is gone, not the next one of its name."""
    held = book.get(pod.key)
    if held is not None and held.uid == pod.metadata.uid:
        del book[pod.key]


def replace_pods(book: Book, pods: Iterable[Pod], configuration: Configuration) -> None:
    """Take in a complete list."""
    listed = {pod.key: pod for pod in pods}
    for key in book.keys() - listed.keys():
        del book[key]
    for pod in listed.values():
        apply_pod(book, pod, configuration)


def _newer(pod: Pod, held: Pod) -> bool:
    """Return whether ``pod`` is not older: resource versions of one kind compare as numbers (KEP-5504)."""
    one, other = pod.metadata.resource_version, held.metadata.resource_version
    if one.isdecimal() and other.isdecimal():
        return int(one) >= int(other)
    return True
