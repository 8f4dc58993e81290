"""A new release while GPU pods come all the time: none fails, and none has another GPU than it was given."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import pytest

from gputile.api.well_known import GPU_MEMORY, MODE_LABEL
from tests.e2e.node import VISIBLE, ServedNode, booked_gpus, probe_pod, runs, told
from tests.e2e.pods.cluster import GPU_NODE, GPUTILE_IMAGE
from tests.e2e.pods.release import PodRelease
from tests.e2e.pods.workload import said_by, sample_pod, started
from tests.localcluster.client import ApiError
from tests.localcluster.former_release import CHART, IMAGE, former_image
from tests.localcluster.skipping import skip_or_fail
from tests.localcluster.toolchain import ComponentMissing

AT_ONCE = 12
ROLLOUT_S = 480.0  # all components, one after the other, on a machine that others use
pytestmark = [pytest.mark.timeout(1800), pytest.mark.requirement("G1", "B1")]


@pytest.fixture
def namespace(release: PodRelease) -> Iterator[str]:
    """A namespace of the test's own."""
    name = release.cluster.plane.create_namespace("load")
    yield name
    release.cluster.kubectl("delete", "namespace", name)


def keep_creating(
    here: ServedNode, namespace: str, label: str, over: threading.Event, lost: str | None
) -> tuple[int, list[str]]:
    """Create a pod every so often, its name begins with ``label``, and delete old ones by force, until it is over.

    Return how many there were, and what was wrong: pods that were refused or failed, or that saw another GPU. A pod
    that was refused with the words ``lost`` is created once more, as every controller does.
    """
    wrong: list[str] = []
    for number in count():
        if over.wait(0.5):
            return number, wrong
        pod = probe_pod(f"{label}-{number}", {GPU_MEMORY: 4}, hostNetwork=False)
        try:
            try:
                here.create(namespace, pod)
            except ApiError as error:
                if lost is None or lost not in str(error):
                    raise
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
def load(release: PodRelease, namespace: str, label: str, lost: str | None = None) -> Iterator[None]:
    """Create GPU pods all the time; at the end none has failed, and each has the GPUs and the memory it was given."""
    here = ServedNode(release.cluster.plane, release.cluster.nodes[GPU_NODE])
    over = threading.Event()
    with ThreadPoolExecutor(1) as worker:
        making = worker.submit(keep_creating, here, namespace, label, over, lost)
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


@pytest.fixture
def former(release: PodRelease) -> Iterator[PodRelease]:
    """The former release, as people installed it: its chart and its image. Afterwards today's is there again.

    The node is of mode share: as a pod, the former release's agent starts no isolated container with runc 1.2 or later.
    """
    try:
        image = former_image()
    except ComponentMissing as missing:
        skip_or_fail(missing)
    for node in release.cluster.nodes.values():
        node.load_image(image)
    release.uninstall()
    set_mode(release, "share")
    release.install(CHART)
    wait_rolled_out(release, IMAGE)
    yield release
    release.cluster.clear()
    release.upgrade({"image.tag": ""})
    wait_rolled_out(release, GPUTILE_IMAGE)
    set_mode(release, "cgpu")
    row = [GPU_NODE, "ready", "cgpu", "128MiB", "4"]
    release.cluster.wait(lambda: row in map(str.split, release.status().stdout.splitlines()), "the mode of before")


def set_mode(release: PodRelease, mode: str) -> None:
    """Label the node with GPUs."""
    release.cluster.kubectl("label", "node", GPU_NODE, f"{MODE_LABEL}={mode}", "--overwrite")


def test_an_upgrade_from_the_former_release_under_load_fails_no_pod(former: PodRelease, namespace: str) -> None:
    """By the commands that the changelog names, and back again; what ran under the former release runs on.

    The former release's webhook lets no API server go before it ends: a review that is sent at that moment is lost.
    """
    cluster = former.cluster
    cluster.create(sample_pod("before", 16))
    said_by(cluster, "before")
    (before,) = cluster.pods("default")
    with load(former, namespace, "upgrade", lost=": EOF"):
        former.upgrade({"image.tag": ""})
        wait_rolled_out(former, GPUTILE_IMAGE)
    with load(former, namespace, "rollback"):
        former.helm("rollback", former.name)
        wait_rolled_out(former, IMAGE)
    (after,) = cluster.pods("default")
    assert started(after) == started(before)
