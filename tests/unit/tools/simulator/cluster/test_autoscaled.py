"""A HorizontalPodAutoscaler of the same files keeps its target within its bounds, without any metric."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.cluster.workload_pods import Expansion, expand
from gputile.tools.simulator.documents.manifests import ManifestError
from tests.manifests import DAEMON_SET, DEPLOYMENT, GONE, STATEFUL_SET, Json, changed, pod_template
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B4")

ROLLOUT: Json = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Rollout",
    "metadata": {"name": "w"},
    "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": pod_template()},
}


def autoscaler(body: Json, least: int, most: int) -> Json:
    target = {"apiVersion": body["apiVersion"], "kind": body["kind"], "name": body["metadata"]["name"]}
    spec = {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": most}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}, "spec": spec}


def expanded(tmp_path: Path, *bodies: Json) -> Expansion:
    return expand(load_text(tmp_path, "\n".join(map(json.dumps, bodies))).manifests, [])


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("body", "bounds", "pods"),
    [
        (changed(DEPLOYMENT, "spec.replicas", 1), (6, 8), 6),
        (changed(DEPLOYMENT, "spec.replicas", 9), (1, 3), 3),
        (changed(DEPLOYMENT, "spec.replicas", 2), (2, 2), 2),
        (changed(DEPLOYMENT, "spec.replicas", GONE), (4, 4), 4),
        (changed(DEPLOYMENT, "spec.replicas", 0), (4, 4), 0),
        (changed(STATEFUL_SET, "spec.replicas", 1), (3, 3), 3),
        (ROLLOUT, (3, 3), 3),
        (changed(DEPLOYMENT, "metadata.namespace", "other"), (6, 8), 2),
    ],
)
def test_the_target_has_as_many_pods_as_it_keeps(
    tmp_path: Path, order: int, body: Json, bounds: tuple[int, int], pods: int
) -> None:
    found = expanded(tmp_path, *[body, autoscaler(body, *bounds)][::order])
    assert len(found.pods) == pods


def test_what_differs_from_the_file_is_told(tmp_path: Path) -> None:
    few = changed(DEPLOYMENT, "spec.replicas", 1)
    said = str(expanded(tmp_path, few, autoscaler(few, 6, 8)).notes[0])
    assert "HorizontalPodAutoscaler/h keeps it at 6 to 8 replicas: 6 are placed, and it says 1" in said
    said = str(expanded(tmp_path, few, autoscaler(few, 1, 8)).notes[0])
    assert "keeps it at 1 to 8 replicas: the 1 that it says are placed" in said
    assert expanded(tmp_path, few, autoscaler(few, 1, 1)).notes == []


def test_a_daemon_set_has_no_replicas(tmp_path: Path) -> None:
    found = expanded(tmp_path, DAEMON_SET, autoscaler(DAEMON_SET, 6, 8))
    assert "no node" in str(found.notes[0])


def test_one_that_is_refused_bounds_nothing(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as error:
        expanded(tmp_path, DEPLOYMENT, autoscaler(DEPLOYMENT, 8, 6), {**autoscaler(DEPLOYMENT, 1, 2), "spec": {}})
    assert "replicas: " not in str(error.value)
