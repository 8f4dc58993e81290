"""Pods beyond a ResourceQuota of the same files are refused, as an API server refuses them."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.workloads import Expansion, expand
from tests.manifests import DEPLOYMENT, MEM, Json, changed
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B4")

SCOPED = {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}}


def quota(hard: Json, **more: object) -> Json:
    named = {"name": "q", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": named, "spec": {"hard": hard, **more}}


def expanded(tmp_path: Path, *bodies: Json) -> Expansion:
    return expand(load_text(tmp_path, "\n---\n".join(map(json.dumps, bodies))).manifests, [])


@pytest.mark.parametrize(
    "hard",
    [
        {"pods": 2},
        {"count/pods": "2"},
        {f"requests.{MEM}": 4},
        {"requests.cpu": 1, "cpu": "1000m", "memory": "2Gi", "requests.memory": "2048Mi"},
        {"limits.cpu": 0, "services": 0, "count/deployments.apps": 0, MEM: 0, "requests.storage": 0},
    ],
    ids=str,
)
def test_what_is_allowed_is_taken(tmp_path: Path, hard: Json) -> None:
    requests = {"cpu": "500m", "memory": "1Gi"}
    body = changed(DEPLOYMENT, "spec.template.spec.containers.0.resources.requests", requests)
    found = expanded(tmp_path, quota(hard), body)
    assert len(found.pods) == 2
    assert "only pods of the files and their requests are judged" in str(found.notes[0])


@pytest.mark.parametrize(
    ("hard", "said"),
    [
        (
            {"pods": 1},
            r'ResourceQuota/q: spec.hard\["pods"\]: exceeded quota: the files. pods in default are 2, and may be 1',
        ),
        ({"count/pods": "0"}, "are 2, and may be 0"),
        ({f"requests.{MEM}": 3}, r'hard\["requests.aliyun.com/gpu-mem"\]: .* request 4, and may request 3'),
        ({"cpu": "999m"}, "request 1000m, and may request 999m"),
        ({"requests.memory": "2047Mi"}, "request 2147483648, and may request 2047Mi"),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", [1, -1])
def test_what_is_more_is_refused(tmp_path: Path, hard: Json, said: str, order: int) -> None:
    requests = {"cpu": "500m", "memory": "1Gi"}
    body = changed(DEPLOYMENT, "spec.template.spec.containers.0.resources.requests", requests)
    with pytest.raises(ManifestError, match=said):
        expanded(tmp_path, *[quota(hard), body][::order])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.namespace", "other"),
        ("spec.scopes", ["NotTerminating"]),
        ("spec.scopeSelector", SCOPED["scopeSelector"]),
    ],
)
def test_other_pods_are_not_counted(tmp_path: Path, path: str, value: object) -> None:
    assert len(expanded(tmp_path, changed(quota({"pods": 1}), path, value), DEPLOYMENT).pods) == 2
