"""Pods that name a key which a ConfigMap or Secret of the files does not have never start."""

import json
from pathlib import Path
from typing import Any

import pytest

from gputile.tools.simulator.cluster.workload_pods import expand
from gputile.tools.simulator.documents.manifests import ManifestError
from tests.manifests import CRON_JOB, DEPLOYMENT, POD, Json, changed
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B4")

CONFIG_MAP: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"model": "x"}}
SECRET: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": "x"}}
PLACES = [(POD, "spec"), (DEPLOYMENT, "spec.template.spec"), (CRON_JOB, "spec.jobTemplate.spec.template.spec")]


def refused(tmp_path: Path, *bodies: Json) -> str:
    try:
        expand(load_text(tmp_path, json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})).manifests, [])
    except ManifestError as error:
        return str(error)
    return ""


def by_variable(body: Json, spec: str, field: str, reference: Json) -> Json:
    variable = {"name": "A", "valueFrom": {field: reference}}
    return changed(body, f"{spec}.containers.0.env", [variable])


def by_volume(body: Json, spec: str, source: Json) -> Json:
    mount = {"name": "v", "mountPath": "/v"}
    mounted = changed(body, f"{spec}.containers.0.volumeMounts", [mount])
    return changed(mounted, f"{spec}.volumes", [{"name": "v", **source}])


@pytest.mark.parametrize(("body", "spec"), PLACES, ids=["Pod", "Deployment", "CronJob"])
@pytest.mark.parametrize(
    ("beside", "field", "name", "key"),
    [(CONFIG_MAP, "configMapKeyRef", "c", "model"), (SECRET, "secretKeyRef", "s", "token")],
    ids=["ConfigMap", "Secret"],
)
def test_keys_of_variables(
    tmp_path: Path, body: Json, spec: str, beside: Json, field: str, name: str, key: str
) -> None:
    assert refused(tmp_path, beside, by_variable(body, spec, field, {"name": name, "key": key})) == ""
    wrong = {"name": name, "key": f"{key}s"}
    said = refused(tmp_path, by_variable(body, spec, field, wrong), beside)
    assert f'containers[0].env[0].valueFrom.{field}.key: Invalid value: "{key}s"' in said
    assert "no kubelet starts the pod" in said
    assert f"did you mean {key}?" in said
    for right in ({**wrong, "optional": True}, {**wrong, "name": "other"}):
        assert refused(tmp_path, beside, by_variable(body, spec, field, right)) == ""


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ({"configMap": {"name": "c", "items": [{"key": "z", "path": "p"}]}}, "configMap"),
        ({"secret": {"secretName": "s", "items": [{"key": "z", "path": "p"}]}}, "secret"),
        (
            {"projected": {"sources": [{"secret": {"name": "s", "items": [{"key": "z", "path": "p"}]}}]}},
            "projected.sources[0].secret",
        ),
    ],
    ids=["ConfigMap", "Secret", "projected"],
)
def test_keys_of_files(tmp_path: Path, source: dict[str, Any], where: str) -> None:
    pod = by_volume(POD, "spec", source)
    assert f'spec.volumes[0].{where}.items[0].key: Invalid value: "z"' in refused(tmp_path, CONFIG_MAP, SECRET, pod)
    assert refused(tmp_path, CONFIG_MAP, SECRET, changed(pod, "spec.containers.0.volumeMounts", [])) == ""
    assert refused(tmp_path, pod) == "", "whether the volume is there is not looked up"


@pytest.mark.parametrize(
    "beside",
    [
        changed(CONFIG_MAP, "data", {}),
        changed(CONFIG_MAP, "metadata.namespace", "other"),
        changed(CONFIG_MAP, "binaryData", {"key": "eA=="}),
    ],
    ids=["filled by others", "elsewhere", "binary"],
)
def test_keys_that_are_there_or_may_come(tmp_path: Path, beside: Json) -> None:
    pod = by_variable(POD, "spec", "configMapKeyRef", {"name": "c", "key": "key"})
    assert refused(tmp_path, CONFIG_MAP, pod)
    assert refused(tmp_path, beside, pod) == ""


def test_a_controller_adds_keys_to_the_secret_of_a_service_account(tmp_path: Path) -> None:
    pod = by_variable(POD, "spec", "secretKeyRef", {"name": "s", "key": "ca.crt"})
    account = changed(SECRET, "metadata.annotations", {"kubernetes.io/service-account.name": "default"})
    assert refused(tmp_path, changed(account, "type", "kubernetes.io/service-account-token"), pod) == ""
    assert refused(tmp_path, account, pod)
