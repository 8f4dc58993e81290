"""Manifests of other systems are written anew; what is not certain stays, and a note says what to do."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gputile.cli.app import app

HAMI = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "cpu": 4}


def convert(tmp_path: Path, text: str, *options: str) -> tuple[list[Any], str]:
    path = tmp_path / "in.yaml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["convert", "-f", str(path), *options])
    assert result.exit_code == 0, result.stderr
    return list(yaml.safe_load_all(result.stdout)), result.stderr


def pod(limits: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> str:
    containers = [{"name": "m", "image": "i", "resources": {"limits": limits}}]
    metadata = {"name": "p", "annotations": annotations or {}}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}}
    )


@pytest.mark.parametrize(
    ("limits", "options", "written"),
    [
        (HAMI, (), {"aliyun.com/gpu-mem": 3, "cpu": 4}),
        (HAMI, ("--unit", "128MiB"), {"aliyun.com/gpu-mem": 24, "cpu": 4}),
        (
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 32},
            (),
            {"aliyun.com/gpu-mem": 1, "aliyun.com/gpu-core.percentage": 35},
        ),
        ({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 4096}, (), {"aliyun.com/gpu-mem": 4}),
        ({"volcano.sh/vgpu-number": 2}, (), {"nvidia.com/gpu": 2}),
        ({"nvidia.com/gpu.shared": 1}, (), {"nvidia.com/gpu": 1}),
        (
            {"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 100, "nvidia.com/gpucores": 100},
            (),
            {"nvidia.com/gpu": 2},
        ),
        (
            {"koordinator.sh/gpu-shared": 1, "koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50},
            ("--gpu-memory", "80GiB"),
            {"aliyun.com/gpu-mem": 40, "aliyun.com/gpu-core.percentage": 50},
        ),
        ({"koordinator.sh/gpu.shared": 2, "koordinator.sh/gpu-memory-ratio": 200}, (), {"nvidia.com/gpu": 2}),
    ],
)
def test_amounts_of_others_become_gputiles(
    tmp_path: Path, limits: dict[str, Any], options: tuple[str, ...], written: dict[str, Any]
) -> None:
    (body,), _ = convert(tmp_path, pod(limits, schedulerName="hami-scheduler"), *options)
    assert body["spec"]["containers"][0]["resources"]["limits"] == written
    assert "schedulerName" not in body["spec"]


def test_parts_of_several_gpus_get_the_label_that_spreads_them(tmp_path: Path) -> None:
    template = json.loads(pod({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 4096}))
    text = json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": template}})
    (body,), _ = convert(tmp_path, text)
    found = body["spec"]["template"]
    assert found["metadata"]["labels"] == {"aliyun.com/gpu-count": "2"}
    assert found["spec"]["containers"][0]["resources"]["limits"] == {"aliyun.com/gpu-mem": 8}


def test_the_annotations_of_kai_become_limits(tmp_path: Path) -> None:
    texts = [pod({}, {"gpu-memory": "4096"}), pod({}, {"gpu-fraction": "0.5"}, schedulerName="kai-scheduler")]
    bodies, said = convert(tmp_path, "\n---\n".join(texts), "--gpu-memory", "80GiB")
    limits = [each["spec"]["containers"][0]["resources"]["limits"] for each in bodies]
    assert limits == [{"aliyun.com/gpu-mem": 4}, {"aliyun.com/gpu-mem": 40}]
    assert not any("annotations" in each["metadata"] for each in bodies)
    assert said == ""


def test_a_gang_of_others_gets_the_labels_of_a_gang(tmp_path: Path) -> None:
    task = {"template": json.loads(pod({"nvidia.com/gpu": 1})), "replicas": 4}
    spec = {"minAvailable": 4, "schedulerName": "volcano", "tasks": [task]}
    text = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}
    (body,), said = convert(tmp_path, json.dumps(text))
    assert body["spec"]["tasks"][0]["template"]["metadata"]["labels"] == {
        "pod-group.scheduling.sigs.k8s.io/name": "train",
        "pod-group.scheduling.sigs.k8s.io/min-available": "4",
    }
    assert body["spec"]["schedulerName"] == "default-scheduler"
    assert said == ""


@pytest.mark.parametrize(
    ("limits", "annotations", "said"),
    [
        ({"nvidia.com/gpu": 1}, {"nvidia.com/use-gputype": "A100"}, 'annotations["nvidia.com/use-gputype"]'),
        (
            {"nvidia.com/gpumem-percentage": 50},
            {},
            "in memory units; or state the memory of the whole GPU with --gpu-memory",
        ),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 33}, {}, "write aliyun.com/gpu-core.percentage: 35"),
        ({}, {"gpu-fraction": "0.5"}, "--gpu-memory"),
    ],
)
def test_what_is_not_certain_stays_and_is_told(
    tmp_path: Path, limits: dict[str, Any], annotations: dict[str, str], said: str
) -> None:
    before = pod(limits, annotations)
    (body,), notes = convert(tmp_path, before)
    assert body == json.loads(before)
    assert said in notes


def workload(api: str, kind: str, spec: dict[str, Any], **metadata: str) -> str:
    return json.dumps({"apiVersion": api, "kind": kind, "metadata": metadata or {"name": "t"}, "spec": spec})


TASKS = {"minAvailable": 3, "schedulerName": "volcano", "tasks": [{"template": json.loads(pod(HAMI))}]}
VOLCANO = "batch.volcano.sh/v1alpha1"
HALF = {"gpu-fraction": "0.5"}
OF_KAI = {"Worker": {"template": json.loads(pod({}, HALF, schedulerName="kai-scheduler"))}}
ARGO = {"templates": [{"metadata": {"annotations": HALF}, "container": {"image": "i"}}]}


@pytest.mark.parametrize(
    ("text", "written", "said"),
    [
        (
            pod({}, HALF | {"gpu-fraction-num-devices": "2"}),
            str(HALF)[1:-1],
            "convert gpu-fraction-num-devices by hand",
        ),
        (pod({}, {"gpu-fraction": "nan"}), "'nan'", "asks KAI or Run:ai for nan of a GPU"),
        (workload(VOLCANO, "Job", TASKS, generateName="t-"), "'default-scheduler'", "NAME, different for each gang"),
        (
            workload(VOLCANO, "CronJob", {"jobTemplate": {"spec": TASKS}}),
            "'default-scheduler', 'tasks'",
            "NAME, different",
        ),
        (workload("kubeflow.org/v1", "PyTorchJob", OF_KAI), "'aliyun.com/gpu-mem': 40", "starts its pods together"),
        (workload("argoproj.io/v1alpha1", "Workflow", ARGO), str(HALF), 'spec.templates[0].metadata.annotations["gpu-'),
        (pod({"volcano.sh/vgpu-memory": 9, "aliyun.com/gpu": 1}), "'aliyun.com/gpu-mem': 1", "can use one kind of GPU"),
        (pod({"nvidia.com/gpu": 20, "nvidia.com/gpumem": 9}), "'aliyun.com/gpu-mem': 20", "not a number of GPUs"),
        (pod({"nvidia.com/gpumem": "10Gi"}), "'aliyun.com/gpu-mem': 10485760", "more than any GPU has"),
        (pod(HAMI).replace("limits", "requests"), "'aliyun.com/gpu-mem': 3", "a request and no limit"),
        (pod(HAMI | {"nvidia.com/gpucores": 101}), "'aliyun.com/gpu-core.percentage': 100", ""),
    ],
)
def test_a_doubtful_result_is_told(tmp_path: Path, text: str, written: str, said: str) -> None:
    body, notes = convert(tmp_path, text, "--gpu-memory", "80GiB")
    assert written in str(body)
    assert said in notes
    assert bool(said) == bool(notes)


def test_other_objects_and_the_order_stay(tmp_path: Path) -> None:
    text = "kind: ConfigMap\napiVersion: v1\ndata: {b: '1e5', a: 'y'}\nmetadata: {name: c}\n"
    (body,), said = convert(tmp_path, text)
    assert list(body) == ["kind", "apiVersion", "data", "metadata"]
    assert body["data"] == {"b": "1e5", "a": "y"}
    assert "nothing to convert" in said


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a: [\n", (), "document 1: line 2"),
        (pod(HAMI), ("--unit", "3"), "--unit 3: '3' is not a memory size"),
        (pod({}).replace('{"limits": {}}', "[]"), (), "spec.containers[0].resources: must be a mapping, is a list"),
    ],
)
def test_what_cannot_be_used_is_an_error(tmp_path: Path, text: str, options: tuple[str, ...], said: str) -> None:
    path = tmp_path / "in.yaml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["convert", "-f", str(path), *options])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
