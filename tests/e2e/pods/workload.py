"""Pods that the tests run on a share of a GPU, and what they say."""

import re
from typing import Any

from gputile.api.well_known import GPU_MEMORY
from tests.e2e.pods.cluster import PodCluster
from tests.localcluster.images import SAMPLE_IMAGE

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_SAID = re.compile(r"begun=(\d+) gpus=(\d+) total_mib=(\d+) half=(\d+) over=(\d+)")


def share_of(mib: int) -> tuple[int, ...]:
    """Return what the documents' sample says where it has one GPU and that much memory of it, and no more."""
    return 0, 1, mib, 0, OUT_OF_MEMORY


def said_by(cluster: PodCluster, pod: str) -> tuple[int, ...]:
    """Return what the documents' sample said: errors, GPUs, MiB.

    It waits until the sample has spoken, and the kubelet has told the API server of its container.
    """
    found: list[tuple[int, ...]] = []

    def spoken() -> bool:
        match = _SAID.search(cluster.logs("default", pod))
        found.extend([tuple(map(int, match.groups()))] if match else [])
        told = [
            status
            for each in cluster.pods("default")
            if each["metadata"]["name"] == pod
            for status in each["status"].get("containerStatuses", [])
        ]
        return bool(found and told) and all("containerID" in each for each in told)

    try:
        cluster.wait(spoken, f"{pod} to say what it got")
    except TimeoutError as error:
        raise AssertionError(cluster.kubectl("describe", "pod", pod)) from error
    return found[-1]


def sample_pod(name: str, units: int) -> dict[str, Any]:
    """Return a pod of the documents' image."""
    container = {
        "name": "main",
        "image": SAMPLE_IMAGE,
        "command": ["bash", "gpushare/run.sh"],
        "resources": {"limits": {GPU_MEMORY: units}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }


def started(pod: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the ID of each of a pod's containers, and how often it was started anew."""
    return [(status["containerID"], status["restartCount"]) for status in pod["status"]["containerStatuses"]]


def sample_set(name: str, units: int) -> dict[str, Any]:
    """Return a StatefulSet of one such pod."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 1,
            "serviceName": name,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": sample_pod(name, units)["spec"]},
        },
    }
