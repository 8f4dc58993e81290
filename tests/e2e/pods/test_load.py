"""A new release while GPU pods come all the time: none fails, and none has another GPU than it was given."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import pytest

from gputile.api.well_known import GPU_MEMORY
from tests.e2e.node import VISIBLE, ServedNode, booked_gpus, probe_pod, runs, told
from tests.e2e.pods.cluster import GPU_NODE, GPUTILE_IMAGE
from tests.e2e.pods.release import PodRelease
from tests.localcluster.client import ApiError

AT_ONCE = 12
ROLLOUT_S = 900.0  # all components, one after the other, on a machine that others use
pytestmark = [pytest.mark.timeout(1800), pytest.mark.requirement("G1", "B1")]


@pytest.fixture
def namespace(release: PodRelease) -> Iterator[str]:
    """A namespace of the test's own."""
    name = release.cluster.plane.create_namespace("load")
    yield name
    release.cluster.kubectl("delete", "namespace", name)


def keep_creating(here: ServedNode, namespace: str, label: str, over: threading.Event) -> tuple[int, list[str]]:
    """Create a pod every half second, its name begins with ``label``, and delete old ones by force, until it is over.

    Return how many there were, and what was wrong: pods that were refused or failed, or that saw another GPU.
    """
    wrong: list[str] = []
    for number in count():
        if over.wait(0.5):
            return number, wrong
        pod = probe_pod(f"{label}-{number}", {GPU_MEMORY: 4}, hostNetwork=False)
        try:
            here.create(namespace, pod)
            if number >= AT_ONCE:
                wrong += faults_of(here, namespace, f"{label}-{number - AT_ONCE}")
                here.delete_now(namespace, f"{label}-{number - AT_ONCE}")
        except ApiError as error:
            wrong.append(str(error))
    raise AssertionError("unreachable")


def faults_of(here: ServedNode, namespace: str, name: str) -> list[str]:
    """Return what is wrong with a pod that has had some seconds."""
    pod = here.plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    if pod["status"]["phase"] == "Failed":
        return [told(pod)]
    if not runs(pod) or not here.has_spoken(pod):
        return []
    sees, booked = {here.said(pod, "main")[VISIBLE]}, booked_gpus(pod)["main"]
    return [] if sees == booked else [f"{name} sees {sees}, booked {booked}"]


@contextmanager
def load(release: PodRelease, namespace: str, label: str) -> Iterator[None]:
    """Create GPU pods all the time; at the end none has failed, and each has the GPUs and the memory it was given."""
    here = ServedNode(release.cluster.plane, release.cluster.nodes[GPU_NODE])
    over = threading.Event()
    with ThreadPoolExecutor(1) as worker:
        making = worker.submit(keep_creating, here, namespace, label, over)
        try:
            yield
        finally:
            over.set()
        created, wrong = making.result()
    assert created > AT_ONCE
    assert wrong == []
    release.cluster.wait(
        lambda: all(pod["status"].get("phase") != "Pending" for pod in here.pods(namespace)), "all pods to begin"
    )
    assert [told(pod) for pod in here.pods(namespace) if pod["status"]["phase"] == "Failed"] == []
    here.wait_agreement(namespace)


def wait_rolled_out(release: PodRelease, image: str) -> None:
    """Wait until all components run this image, and nothing is left of others."""
    release.cluster.wait(lambda: release.images() == {image}, f"all components to run {image}", ROLLOUT_S)
    release.wait_deployed()


def test_a_rolling_upgrade_under_load_fails_no_pod(release: PodRelease, namespace: str) -> None:
    """All components change their image at once: agents on all nodes, schedulers, webhooks, controllers."""
    for node in release.cluster.nodes.values():
        node.tag_image(GPUTILE_IMAGE, f"{GPUTILE_IMAGE}-next")
    with load(release, namespace, "rolling"):
        for image in (f"{GPUTILE_IMAGE}-next", GPUTILE_IMAGE):
            release.upgrade({"image.tag": image.rpartition(":")[2]})
            wait_rolled_out(release, image)
