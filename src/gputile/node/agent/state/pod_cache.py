"""Keeps the pods of this node by key, by a watch that may lag behind what was read directly."""

from collections.abc import Iterable
from dataclasses import replace

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod, is_older, unversioned
from gputile.node.agent.state.known_pods import KnownPod, known_pod

MOST_GONE = 4096


class PodCache(dict[str, KnownPod]):
    """Pods by key. ``gone`` are the UIDs of pods that the watch or a list reported as deleted: the answer to a read or
    a write may arrive later, and would bring such a pod back for good, since the watch has no more to say of it.

    ``ahead`` are the UIDs of pods that were read directly, and that no watch or list has reported yet: a list that
    lacks one of them may be older than the pod.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gone: dict[str, None] = {}
        self.ahead: set[str] = set()


def answered_pod(pod_cache: PodCache, pod: Pod, configuration: Configuration) -> bool:
    """Take in a pod from an answer of the API server, unless the watch has said meanwhile that it is gone."""
    uid, held = pod.metadata.uid, pod_cache.get(pod.key)
    if uid in pod_cache.gone:
        return False
    if held is None or held.uid != uid:
        pod_cache.ahead.add(uid)
    return _put(pod_cache, pod, configuration)


def apply_pod(pod_cache: PodCache, pod: Pod, configuration: Configuration) -> bool:
    """Take in a pod from the watch or a list, unless something newer is known under its name: of this pod, or of the
    next one so named.

    Return whether anything that matters here is new: most of what a kubelet reports of a pod does not.
    """
    pod_cache.ahead.discard(pod.metadata.uid)
    return _put(pod_cache, pod, configuration)


def _put(pod_cache: PodCache, pod: Pod, configuration: Configuration) -> bool:
    held = pod_cache.get(pod.key)
    if held is not None and is_older(pod.metadata.resource_version, held.pod.metadata.resource_version):
        return False
    if held is not None and unversioned(pod) == unversioned(held.pod):
        pod_cache[pod.key] = replace(held, pod=pod)
        return False
    pod_cache[pod.key] = known_pod(pod, configuration)
    return True


def remove_pod(pod_cache: PodCache, pod: Pod) -> None:
    """Forget a pod that is gone, not the next one of its name."""
    held = pod_cache.get(pod.key)
    if held is not None and held.uid == pod.metadata.uid:
        del pod_cache[pod.key]
    _bury(pod_cache, pod.metadata.uid)


def replace_pods(pod_cache: PodCache, pods: Iterable[Pod], configuration: Configuration) -> None:
    """Take in a complete list."""
    listed = {pod.key: pod for pod in pods}
    uids = {pod.metadata.uid for pod in listed.values()}
    for key, known in list(pod_cache.items()):
        if known.uid not in uids and known.uid not in pod_cache.ahead:
            _bury(pod_cache, known.uid)
        if key not in listed:
            del pod_cache[key]
    pod_cache.ahead.clear()
    for pod in listed.values():
        apply_pod(pod_cache, pod, configuration)


def _bury(pod_cache: PodCache, uid: str) -> None:
    """Remember that a pod is gone."""
    pod_cache.ahead.discard(uid)
    pod_cache.gone[uid] = None
    if len(pod_cache.gone) > MOST_GONE:
        del pod_cache.gone[next(iter(pod_cache.gone))]


def read_again(pod_cache: PodCache, configuration: Configuration) -> None:
    """Judge all pods by another configuration."""
    for key, known in pod_cache.items():
        pod_cache[key] = known_pod(known.pod, configuration)
