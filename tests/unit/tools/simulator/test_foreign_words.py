"""Words of HAMi, KAI, Run:ai and Volcano, quotas that count nothing, and what is held back, are told."""

from pathlib import Path

import pytest

from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.workloads import Expansion
from tests.unit.tools.simulator.builders import expand_text


def pod(tmp_path: Path, annotations: str = "{}", limits: str = "{}", spec: str = "") -> Expansion:
    text = f"""
apiVersion: v1
kind: Pod
metadata: {{name: p, annotations: {annotations}}}
spec:
  containers: [{{name: c, image: i, resources: {{limits: {limits}}}}}]
  {spec}
"""
    return expand_text(tmp_path, text)


def notes(expansion: Expansion) -> str:
    return "\n".join(note.text for note in expansion.notes)


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        (
            "{gpu-fraction: '0.5'}",
            "asks KAI or Run:ai for 0.5 of a GPU, and gputile for nothing: .* for that part",
        ),
        ("{gpu-memory: '2000'}", "asks KAI or Run:ai for 2000 MiB of a GPU, and gputile for nothing"),
    ],
)
def test_a_gpu_that_only_another_system_is_asked_for_is_an_error(tmp_path: Path, annotations: str, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        pod(tmp_path, annotations)
    assert pod(tmp_path, annotations, "{nvidia.com/gpu: 1}").pods


@pytest.mark.parametrize(
    ("annotations", "limits", "said"),
    [
        ("{nvidia.com/use-gputype: A100}", "{nvidia.com/gpu: 1}", "chooses GPUs for HAMi"),
        ("{scheduling.k8s.io/group-name: g}", "{}", "is a gang of Volcano: for all or none give the pods the labels"),
        ("{pod-group-name: g}", "{}", "pod-group.scheduling.sigs.k8s.io/name: g"),
        ("{}", "{nvidia.com/gpumem: 3000}", "write aliyun.com/gpu-mem: 3 (3000 MiB in units of 1024 MiB)"),
    ],
)
def test_other_words_are_told(tmp_path: Path, annotations: str, limits: str, said: str) -> None:
    assert said in notes(pod(tmp_path, annotations, limits))


@pytest.mark.parametrize(
    ("version", "kind", "spec", "said"),
    [
        ("batch.volcano.sh/v1alpha1", "Job", "{minAvailable: 4, tasks: [{template: T}]}", "minAvailable: 4"),
        ("batch.volcano.sh/v1alpha1", "Job", "{tasks: [{replicas: 3, template: T}]}", "(absent, so all pods): 3"),
        (
            "kubeflow.org/v1",
            "PyTorchJob",
            "{runPolicy: {schedulingPolicy: {minAvailable: 2}}, pytorchReplicaSpecs: {Worker: {template: T}}}",
            "spec.runPolicy.schedulingPolicy.minAvailable: 2: gputile places its pods one by one",
        ),
        (
            "batch/v1",
            "Job",
            "{template: {spec: {schedulingGroup: {podGroupName: g}, restartPolicy: Never, containers: [{name: c, "
            "image: i}]}}}\n---\napiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nmetadata: {name: g}",
            "template.spec.schedulingGroup is a gang of Kubernetes' own",
        ),
        ("batch/v1", "Job", "{suspend: true, template: T}", "is suspended: judged as if it were resumed"),
        ("apps/v1", "Deployment", "{replicas: 0, selector: {matchLabels: {a: b}}, template: T}", "has 0 replicas"),
    ],
)
def test_gangs_of_others_and_what_is_held_back(tmp_path: Path, version: str, kind: str, spec: str, said: str) -> None:
    template = "{metadata: {labels: {a: b}}, spec: {restartPolicy: RESTART, containers: [{name: c, image: i}]}}"
    template = template.replace("RESTART", "Always" if kind == "Deployment" else "Never")
    whole = spec.replace("template: T", f"template: {template}")
    text = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {whole}\n"
    expansion = expand_text(tmp_path, text)
    assert expansion.pods
    assert said in notes(expansion)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("nvidia.com/gpu", ["never counts"]),
        ("limits.aliyun.com/gpu-mem", ["never counts"]),
        ("requests.nvidia.com/gpu", ["is not counted here"]),
        ("limits.cpu", []),
        ("count/jobs.batch", []),
        ("gold.storageclass.storage.k8s.io/requests.storage", []),
        ("gputile-gpu.deviceclass.resource.k8s.io/devices", []),
    ],
)
def test_a_quota_that_is_not_counted_is_told(tmp_path: Path, key: str, said: list[str]) -> None:
    text = f"apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: q}}\nspec: {{hard: {{{key}: '1'}}}}\n"
    told = notes(expand_text(tmp_path, text))
    assert [each for each in ("never counts", "is not counted here") if each in told] == said
