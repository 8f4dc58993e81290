"""The manifests for Kueue are what its kinds take, and gputile's gangs get along with Kueue's gate on pods (B5).

Kueue itself does not run here: the test removes the gate as its controllers do.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from gputile.api.well_known import GANG_GATE, GANG_NAME_LABEL, GANG_SIZE_LABEL, GPU_CORE, GPU_MEMORY
from tests.e2e.extender import assert_nothing_over_allocated, bound, events_of, pod_body, pods_in, scheduled
from tests.localcluster.admission import installed
from tests.localcluster.controlplane import ControlPlane, KubectlFailed
from tests.localcluster.gputile import EXAMPLES
from tests.localcluster.neighbours import GATE, kueue_kinds, ungate

pytestmark = pytest.mark.requirement("B5")

QUEUES: Final = EXAMPLES / "kueue" / "queues.yaml"
JOBS: Final = EXAMPLES / "kueue" / "jobs.yaml"
TEAMS: Final = ("vision", "speech")
HALF: Final = {GPU_MEMORY: 100, GPU_CORE: 50}  # more than half of a GPU's memory
SETTINGS: Final = {"gpuMemoryUnit": "128MiB", "admission": {"gangs": True}}
CLUSTER: Final = """
gpuMemoryUnit: 128MiB
nodes:
- {name: shared, mode: core_mem, gpus: {count: 8, model: NVIDIA A10, memory: 23028MiB}}
"""


@pytest.fixture(scope="module")
def teams(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Kueue's kinds, and the namespaces of the manifests."""
    plane = control_plane
    with kueue_kinds(plane):
        for team in TEAMS:
            plane.create_namespace(team)
        yield plane
        for team in TEAMS:
            plane.api.delete(f"/api/v1/namespaces/{team}")


def created(plane: ControlPlane, text: str) -> list[str]:
    """Return the objects that a real API server creates from manifests, every field known to it; nothing is stored."""
    return plane.kubectl("create", "--dry-run=server", "--validate=strict", "-o=name", "-f", "-", input=text).split()


def test_the_manifests_are_what_the_real_kinds_take(teams: ControlPlane) -> None:
    for file in (QUEUES, JOBS):
        objects = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
        assert len(created(teams, file.read_text(encoding="utf-8"))) == len(objects) >= 2
    wrong = QUEUES.read_text(encoding="utf-8").replace("cohortName: gpus", "cohort: gpus")
    with pytest.raises(KubectlFailed, match="unknown field"):
        created(teams, wrong)


def test_a_gang_behind_the_gates_of_both_starts_when_kueue_has_removed_all_of_its_own(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Until then no GPU is reserved for it, and a gang that Kueue has admitted gets them all."""
    size = 8
    labels = {GANG_NAME_LABEL: "waiting", GANG_SIZE_LABEL: str(size)}
    with (
        installed(control_plane, settings=SETTINGS),
        scheduled(control_plane, tmp_path, CLUSTER, unit="128MiB", settings=SETTINGS, controller=True) as cluster,
    ):
        for i in range(size):
            body = pod_body(f"waiting-{i}", HALF, labels=labels, schedulingGates=[{"name": GATE}])
            stored = cluster.api.post(f"/api/v1/namespaces/{namespace}/pods", body)
            assert {gate["name"] for gate in stored["spec"]["schedulingGates"]} == {GATE, GANG_GATE}
        for i in range(size - 1):
            ungate(cluster, namespace, f"waiting-{i}")
        text = f"{size - 1} of the {size} pods that start together exist"
        cluster.wait(
            lambda: any(text in each for each in events_of(cluster, namespace, "waiting-0", "GangIncomplete")), text
        )
        cluster.api.post(f"/api/v1/namespaces/{namespace}/pods", pod_body("other", HALF))
        cluster.wait(lambda: bound(pods_in(cluster, namespace)) == {"other": "shared"}, "a pod that does not wait")
        cluster.nodes.delete_pod_now(namespace, "other")
        ungate(cluster, namespace, f"waiting-{size - 1}")
        cluster.wait(lambda: len(bound(pods_in(cluster, namespace))) == size, "the gang to start")
        assert_nothing_over_allocated(cluster)
