"""A claim with ReadWriteOncePod is in one pod at a time: others wait, and some of them for ever."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.cluster.workload_pods import expand
from gputile.tools.simulator.documents.manifests import ManifestError
from tests.manifests import DEPLOYMENT, JOB, POD, Json, changed
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B4")

VOLUMES = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
ONE = changed(changed(DEPLOYMENT, "spec.replicas", 1), "spec.template.spec.volumes", VOLUMES)
TWO = changed(ONE, "spec.replicas", 2)
OTHER = changed(ONE, "metadata.name", "x")
ALONE = changed(POD, "spec.volumes", VOLUMES)
JOBS = changed(changed(JOB, "spec.parallelism", 2), "spec.template.spec.volumes", VOLUMES)


def claim(mode: str) -> Json:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": spec}


def told(tmp_path: Path, *bodies: Json) -> str:
    """Return what is noted of several pods that ask for a claim."""
    manifests = load_text(tmp_path, "\n".join(map(json.dumps, bodies))).manifests
    return " ".join(note.text for note in expand(manifests, []).notes if "one pod at a time" in note.text)


@pytest.mark.parametrize("bodies", [[TWO], [ONE, OTHER], [TWO, ALONE]], ids=["replicas", "two", "beside"])
def test_pods_that_run_on_do_not_share_it(tmp_path: Path, bodies: list[Json]) -> None:
    assert told(tmp_path, *bodies, claim("ReadWriteOnce")) == ""
    with pytest.raises(ManifestError, match=r"/c: spec\.accessModes: ReadWriteOncePod: .* all but one wait for ever"):
        told(tmp_path, *bodies, claim("ReadWriteOncePod"))


@pytest.mark.parametrize("bodies", [[JOBS], [ONE, ALONE]], ids=["a Job", "a Pod"])
def test_pods_that_end_make_way(tmp_path: Path, bodies: list[Json]) -> None:
    assert "the others wait until it has ended" in told(tmp_path, *bodies, claim("ReadWriteOncePod"))


@pytest.mark.parametrize(
    "bodies",
    [[ONE], [ONE, changed(OTHER, "metadata.namespace", "b")], [changed(TWO, "spec.template.spec.volumes", [])]],
    ids=["one", "another namespace", "without it"],
)
def test_one_pod_may_have_it(tmp_path: Path, bodies: list[Json]) -> None:
    assert told(tmp_path, *bodies, claim("ReadWriteOncePod")) == ""
