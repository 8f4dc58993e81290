"""The cluster and the release that all these tests share: starting them takes longer than most of what is tested."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputile.api.well_known import MODE_LABEL
from tests.e2e.pods.cluster import GPU_NODE, PodCluster, pod_cluster, prepare_image
from tests.e2e.pods.release import PodRelease


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build gputile's image before the first test's clock runs, and visibly."""
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if "pod_cluster_here" not in fixtures or session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
        prepare_image()


@pytest.fixture(scope="package")
def pod_cluster_here(
    control_plane_programs: dict[str, Path], node_programs: dict[str, Path], network_programs: dict[str, Path]
) -> Iterator[PodCluster]:
    """A cluster whose pods have a network."""
    with pod_cluster(control_plane_programs | node_programs | network_programs) as found:
        yield found


@pytest.fixture(scope="package")
def release(pod_cluster_here: PodCluster, helm_programs: dict[str, Path]) -> PodRelease:
    """gputile, deployed; one test leaves it to the next as it was."""
    pod_cluster_here.kubectl("label", "node", GPU_NODE, f"{MODE_LABEL}=cgpu")
    found = PodRelease(pod_cluster_here)
    found.install()
    found.wait_deployed()
    return found


@pytest.fixture(autouse=True)
def nothing_left(pod_cluster_here: PodCluster) -> Iterator[None]:
    """Delete what a test has created, also where it failed: the next one would not find the GPUs free."""
    yield
    pod_cluster_here.clear()
