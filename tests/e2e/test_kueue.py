"""The manifests for Kueue are what its kinds take, and gputile's gangs get along with what Kueue writes (B5).

Kueue itself does not run here: the tests write what its controllers write.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from gputile.api.well_known import GANG_GATE, GANG_NAME_LABEL, GANG_SIZE_LABEL, GPU_CORE, GPU_MEMORY
from tests.e2e.extender import assert_nothing_over_allocated, bound, events_of, pod_body, pods_in, scheduled
from tests.e2e.installation import settle
from tests.localcluster.admission import installed
from tests.localcluster.controlplane import ControlPlane, KubectlFailed
from tests.localcluster.gputile import EXAMPLES
from tests.localcluster.neighbours import GATE, admit, evict, kueue_kinds, ungate

pytestmark = pytest.mark.requirement("B5")

QUEUES: Final = EXAMPLES / "kueue" / "queues.yaml"
JOBS: Final = EXAMPLES / "kueue" / "jobs.yaml"
TEAMS: Final = ("vision", "speech")
HALF: Final = {GPU_MEMORY: 100, GPU_CORE: 50}  # more than half of a GPU's memory
SETTINGS: Final = {"admission": {"gangs": True}}
# What the quotas of the manifests are about: 1,432 units and 800 percent on shared GPUs, and 8 whole ones.
CLUSTER: Final = """
gpuMemoryUnit: 128MiB
nodes:
- {name: shared, mode: core_mem, gpus: {count: 8, model: NVIDIA A10, memory: 23028MiB}}
- {name: whole, mode: default, gpus: {count: 8, model: Tesla T4, memory: 15GiB}}
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


@pytest.fixture(scope="module")
def running(teams: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Nodes of both kinds, and all of gputile's control plane."""
    directory = tmp_path_factory.mktemp("kueue")
    with (
        installed(teams, settings={"gpuMemoryUnit": "128MiB", **SETTINGS}),
        scheduled(teams, directory, CLUSTER, unit="128MiB", settings=SETTINGS, controller=True) as plane,
    ):
        yield plane


@pytest.fixture
def cluster(running: ControlPlane) -> Iterator[ControlPlane]:
    """The same, from which the Jobs and pods of a test are gone at its end."""
    yield running
    for team in TEAMS:
        running.api.delete(f"/apis/batch/v1/namespaces/{team}/jobs", {"propagationPolicy": "Background"})
        running.wait(lambda team=team: _is_empty(running, team), f"the namespace {team} to be empty")  # type: ignore[misc]


def _is_empty(plane: ControlPlane, namespace: str) -> bool:
    plane.nodes.delete_all_pods_now(namespace)
    jobs = plane.api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"]
    return not jobs and not pods_in(plane, namespace)


def created(plane: ControlPlane, text: str) -> list[str]:
    """Return the objects that a real API server creates from manifests, every field known to it; nothing is stored."""
    return plane.kubectl("create", "--dry-run=server", "--validate=strict", "-o=name", "-f", "-", input=text).split()


def test_the_manifests_are_what_the_real_kinds_take(teams: ControlPlane) -> None:
    for file in (QUEUES, JOBS):
        objects = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
        assert len(created(teams, file.read_text(encoding="utf-8"))) == len(objects) >= 2


def test_the_real_kinds_refuse_what_is_wrong(teams: ControlPlane) -> None:
    """Or their taking the manifests would show nothing."""
    wrong = QUEUES.read_text(encoding="utf-8").replace("cohortName: gpus", "cohort: gpus")
    with pytest.raises(KubectlFailed, match="unknown field"):
        created(teams, wrong)


def jobs() -> dict[str, dict[str, Any]]:
    """Return the Jobs of the manifest by name, as Kueue's webhook leaves them: suspended."""
    found = {body["metadata"]["name"]: body for body in yaml.safe_load_all(JOBS.read_text(encoding="utf-8"))}
    for body in found.values():
        body["spec"]["suspend"] = True
    return found


def flavor(name: str) -> dict[str, str]:
    """Return the labels of a flavor of the manifests."""
    objects = yaml.safe_load_all(QUEUES.read_text(encoding="utf-8"))
    labels: dict[str, str] = next(
        body["spec"]["nodeLabels"]
        for body in objects
        if (body["kind"], body["metadata"]["name"]) == ("ResourceFlavor", name)
    )
    return labels


def nodes_of(plane: ControlPlane, job: str) -> list[str]:
    """Return the node of each bound pod of a Job."""
    return [node for pod, node in bound(pods_in(plane, "vision")).items() if pod.startswith(f"{job}-")]


def test_jobs_run_on_the_nodes_of_their_flavor_while_kueue_admits_them(cluster: ControlPlane) -> None:
    """Suspended they have no pods. A gang starts whole, leaves whole, and comes back whole."""
    for name, body in jobs().items():
        cluster.api.post("/apis/batch/v1/namespaces/vision/jobs", body)
        assert name in ("evaluate", "train")
    settle(2)
    assert pods_in(cluster, "vision") == []
    admit(cluster, "vision", "evaluate", flavor("shared-gpus"))
    admit(cluster, "vision", "train", flavor("whole-gpus"))
    cluster.wait(lambda: nodes_of(cluster, "evaluate") == ["shared"] * 4, "the Job on shares to start")
    cluster.wait(lambda: nodes_of(cluster, "train") == ["whole"] * 6, "the gang to start")
    assert_nothing_over_allocated(cluster)
    evict(cluster, "vision", "train")
    # No kubelet ends the pods; those of the other Job are of another node.
    cluster.wait(lambda: _end_deleted(cluster) and not nodes_of(cluster, "train"), "the gang to leave")
    admit(cluster, "vision", "train", flavor("whole-gpus"))
    cluster.wait(lambda: nodes_of(cluster, "train") == ["whole"] * 6, "the gang to come back")
    assert_nothing_over_allocated(cluster)


def _end_deleted(plane: ControlPlane) -> bool:
    """Do what kubelets do with pods that are deleted; return whether there was none left."""
    deleted = [pod["metadata"] for pod in pods_in(plane, "vision") if pod["metadata"].get("deletionTimestamp")]
    for metadata in deleted:
        plane.nodes.delete_pod_now("vision", metadata["name"])
    return not deleted


def test_a_gang_behind_the_gates_of_both_starts_when_kueue_has_removed_all_of_its_own(cluster: ControlPlane) -> None:
    """Until then no GPU is reserved for it, and a gang that Kueue has admitted gets them all."""
    size = 8
    gated = {"schedulingGates": [{"name": GATE}], "nodeSelector": flavor("shared-gpus")}
    labels = {GANG_NAME_LABEL: "waiting", GANG_SIZE_LABEL: str(size)}
    for i in range(size):
        body = pod_body(f"waiting-{i}", HALF, labels=labels, **gated)
        stored = cluster.api.post("/api/v1/namespaces/vision/pods", body)
        assert {gate["name"] for gate in stored["spec"]["schedulingGates"]} == {GATE, GANG_GATE}
    for i in range(size - 1):
        ungate(cluster, "vision", f"waiting-{i}")
    text = f"{size - 1} of the {size} pods that start together exist"
    cluster.wait(
        lambda: any(text in each for each in events_of(cluster, "vision", "waiting-0", "GangIncomplete")), text
    )
    body = pod_body("other", HALF, nodeSelector=flavor("shared-gpus"))
    cluster.api.post("/api/v1/namespaces/vision/pods", body)
    cluster.wait(lambda: bound(pods_in(cluster, "vision")) == {"other": "shared"}, "a pod that does not wait for it")
    cluster.nodes.delete_pod_now("vision", "other")
    ungate(cluster, "vision", f"waiting-{size - 1}")
    cluster.wait(lambda: len(bound(pods_in(cluster, "vision"))) == size, "the gang to start")
    assert_nothing_over_allocated(cluster)
