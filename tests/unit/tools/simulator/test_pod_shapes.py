"""Kinds that nobody listed: their pods are found by shape and told, and no amount of GPUs is passed over in silence."""

from pathlib import Path

import pytest

from gputile.api.well_known import WHOLE_GPU
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.workloads import Expansion
from tests.unit.tools.simulator.builders import expand_text

GPU = "{limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 1}}"


def expanded(tmp_path: Path, kind: str, spec: str) -> Expansion:
    version, name = kind.rsplit("/", 1)
    text = f"apiVersion: {version}\nkind: {name}\nmetadata: {{name: x, namespace: team}}\nspec: {spec}\n"
    return expand_text(tmp_path, text)


def told(expansion: Expansion) -> list[str]:
    return [note.text.removeprefix("by its shape: ") for note in expansion.notes if note.text.startswith("by its")]


@pytest.mark.parametrize(
    ("kind", "spec", "names", "said"),
    [
        pytest.param(
            "serving.kserve.io/v1beta1/InferenceService",
            f"{{predictor: {{minReplicas: 2, tolerations: [{{operator: Exists}}], model: {{resources: {GPU}}}}}}}",
            ["x-model-0", "x-model-1"],
            ["2 pods of spec.predictor.model (spec.predictor.minReplicas), nvidia.com/gpu: 1"],
            id="KServe's model",
        ),
        pytest.param(
            "serving.kserve.io/v1beta1/InferenceService",
            f"{{predictor: {{minReplicas: 0, containers: [{{name: c, image: i, resources: {GPU}}}]}}}}",
            ["x-predictor-0"],
            ["1 pod of spec.predictor (spec.predictor.minReplicas (is 0: judged as if 1)), nvidia.com/gpu: 1"],
            id="KServe's own containers, scaled to 0",
        ),
        pytest.param(
            "serving.kserve.io/v1beta1/InferenceService",
            f"{{predictor: {{containers: [{{name: proxy, image: i}}], model: {{resources: {GPU}}}}}}}",
            ["x-predictor-0"],
            ["1 pod of spec.predictor, nvidia.com/gpu: 1"],
            id="a model beside its containers is one of them",
        ),
        pytest.param(
            "serving.kserve.io/v1alpha1/LLMInferenceService",
            f"{{replicas: 2, template: {{containers: [{{name: m, image: i, resources: {GPU}}}]}},"
            " worker: {containers: [{name: w, image: i}]}}",
            ["x-0", "x-1", "x-worker-0", "x-worker-1"],
            [
                "2 pods of spec.template (spec.replicas), nvidia.com/gpu: 1",
                "2 pods of spec.worker (spec.replicas), no GPU",
            ],
            id="specs without metadata",
        ),
        pytest.param(
            "trainer.kubeflow.org/v1alpha1/TrainJob",
            f"{{trainer: {{numNodes: 2, image: i, resourcesPerNode: {GPU}}}}}",
            ["x-trainer-0", "x-trainer-1"],
            ["2 pods of spec.trainer (spec.trainer.numNodes), nvidia.com/gpu: 1"],
            id="TrainJob",
        ),
        pytest.param(
            "argoproj.io/v1alpha1/Workflow",
            f"{{templates: [{{name: a, nodeSelector: {{a: b}}, container: {{image: i, resources: {GPU}}}}}, "
            "{name: b, steps: []}]}",
            ["x-container-0"],
            ["1 pod of spec.templates[0].container, nvidia.com/gpu: 1"],
            id="Argo's Workflow",
        ),
        pytest.param(
            "workload.codeflare.dev/v1beta2/AppWrapper",
            "{components: [{template: {apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: t}, "
            "spec: {pytorchReplicaSpecs: {Worker: {replicas: 2, template: "
            f"{{spec: {{containers: [{{name: p, image: i, resources: {GPU}}}]}}}}}}}}}}}}}}]}}",
            ["x-worker-0", "x-worker-1"],
            [
                "2 pods of spec.components[0].template.spec.pytorchReplicaSpecs.Worker.template "
                "(spec.components[0].template.spec.pytorchReplicaSpecs.Worker.replicas), nvidia.com/gpu: 1"
            ],
            id="a workload within another object",
        ),
        pytest.param(
            "example.com/v1/Grid",
            f"{{rows: [{{replicas: 2, template: {{spec: {{parallelism: 2, template: {{spec: {{containers: "
            f"[{{name: p, image: i, resources: {GPU}}}]}}}}}}}}}}]}}",
            [f"x-rows-{number}" for number in range(4)],
            ["4 pods of spec.rows[0].template.spec.template (spec.rows[0].replicas x spec.rows[0].template.spec.p"],
            id="replicas of replicas",
        ),
        pytest.param(
            "apps.nvidia.com/v1alpha1/NIMService",
            f"{{replicas: 1, image: {{repository: r, tag: t}}, nodeSelector: {{a: b}}, resources: {GPU}}}",
            ["x-0"],
            ["1 pod of spec (spec.replicas), nvidia.com/gpu: 1"],
            id="a container that is the whole spec",
        ),
        pytest.param(
            "serving.kserve.io/v1alpha1/ServingRuntime",
            f"{{containers: [{{name: c, image: i, resources: {GPU}}}]}}",
            [],
            ["describes pods for other objects, and makes none itself"],
            id="a template for other objects",
        ),
        pytest.param(
            "karpenter.sh/v1/NodePool",
            "{limits: {nvidia.com/gpu: 8}, template: {spec: {taints: [{key: nvidia.com/gpu, effect: NoSchedule}]}}}",
            [],
            ["has no template of pods and asks for no GPU: it makes no pods here"],
            id="a bound",
        ),
        pytest.param(
            "monitoring.coreos.com/v1/ServiceMonitor",
            "{endpoints: [{port: metrics}], selector: {matchLabels: {nvidia.com/gpu: '1x'}}}",
            [],
            ["has no template of pods and asks for no GPU: it makes no pods here"],
            id="no pods",
        ),
        pytest.param(
            "monitoring.coreos.com/v1/Prometheus",
            "{containers: [{name: config-reloader, args: a}]}",
            [],
            ["1 pod of spec, no GPU", "ignored: "],
            id="containers that are not a pod's, without a GPU",
        ),
    ],
)
def test_the_pods_of_any_kind(tmp_path: Path, kind: str, spec: str, names: list[str], said: list[str]) -> None:
    expansion = expanded(tmp_path, kind, spec)
    assert [pod.metadata.name for pod in expansion.pods] == names
    found = told(expansion)
    assert len(found) == len(said)
    assert all(text.startswith(begin) for text, begin in zip(found, said, strict=True)), found


def test_what_decides_where_a_pod_goes_may_stand_beside_its_container(tmp_path: Path) -> None:
    spec = f"{{predictor: {{nodeSelector: {{a: b}}, model: {{resources: {GPU}, env: 1}}}}}}"
    (pod,) = expanded(tmp_path, "serving.kserve.io/v1beta1/InferenceService", spec).pods
    assert (pod.spec.node_selector, pod.metadata.namespace) == ({"a": "b"}, "team")
    assert pod.spec.containers[0].resources.limits == {WHOLE_GPU: 1}


@pytest.mark.parametrize(
    ("kind", "spec", "where"),
    [
        (
            "sparkoperator.k8s.io/v1beta2/SparkApplication",
            "{executor: {gpu: {name: nvidia.com/gpu, quantity: 1}}}",
            "executor.gpu",
        ),
        (
            "nvidia.com/v1alpha1/DynamoGraphDeployment",
            "{services: {w: {resources: {limits: {gpu: '1'}}}}}",
            "w.resources.limits",
        ),
        ("example.com/v1/Training", "{perWorker: {nvidia.com/gpu: 2}}", "spec.perWorker"),
        ("example.com/v1/Training", "{perWorker: {nvidia.com/mig-1g.5gb: 2}}", "spec.perWorker"),
    ],
)
def test_gpus_of_which_no_pod_can_be_made_are_an_error(tmp_path: Path, kind: str, spec: str, where: str) -> None:
    with pytest.raises(ManifestError, match=f"{where}: it asks for GPUs, and which pods ask for them is not known"):
        expanded(tmp_path, kind, spec)


def test_a_template_with_gpus_that_is_wrong_is_an_error(tmp_path: Path) -> None:
    spec = f"{{predictor: {{containers: [{{name: c, imag: i, resources: {GPU}}}]}}}}"
    with pytest.raises(ManifestError, match="imag: unknown field; did you mean image"):
        expanded(tmp_path, "serving.kserve.io/v1beta1/InferenceService", spec)
