"""Kinds of other projects: pods by their shape, what the table knows of them, and what people add to it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.tools.simulator.intake import Intake
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.pod_kinds import known_kinds
from gputile.tools.simulator.workloads import Expansion, expand
from tests.unit.tools.simulator.builders import expand_text, load_text, write
from tests.unit.tools.simulator.manifests import Json, changed, pod_template

pytestmark = pytest.mark.requirement("B4")

run = CliRunner()
CLUSTER = (
    "apiVersion: gputile.io/v1alpha1\nkind: Cluster\n"
    "nodes: [{name: 'n', mode: share, gpus: {count: 2, memory: 15GiB}}]\n"
)
TEMPLATE = pod_template()


def replicas(container: str, **numbers: int) -> Json:
    template = changed(TEMPLATE, "spec.containers.0.name", container)
    return {name: {"replicas": number, "template": template} for name, number in numbers.items()}


def of_kind(api_version: str, kind: str, spec: Json) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": spec}


PYTORCH = of_kind("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": replicas("pytorch", Master=1, Worker=2)})
JOB_SET = of_kind(
    "jobset.x-k8s.io/v1alpha2",
    "JobSet",
    {
        "replicatedJobs": [
            {"name": "driver", "template": {"spec": {"template": TEMPLATE}}},
            {
                "name": "workers",
                "replicas": 2,
                "template": {"spec": {"parallelism": 2, "completions": 2, "template": TEMPLATE}},
            },
        ]
    },
)
RAY = {
    "headGroupSpec": {"rayStartParams": {}, "template": TEMPLATE},
    "workerGroupSpecs": [{"groupName": "small", "replicas": 2, "numOfHosts": 2, "template": TEMPLATE}],
}
ROLLOUT = of_kind(
    "argoproj.io/v1alpha1",
    "Rollout",
    {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE},
)
NOTEBOOK = of_kind("kubeflow.org/v1beta1", "Notebook", {"template": TEMPLATE})
GROUPS = of_kind(
    "leaderworkerset.x-k8s.io/v1",
    "LeaderWorkerSet",
    {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": TEMPLATE}},
)
LEVELS = {"name": "a", "replicas": 1, "componentSpecs": [TEMPLATE, {"replicas": 2, **TEMPLATE}]}
PLAIN = {"name": "b", "componentSpecs": [TEMPLATE]}
SELDON = of_kind("machinelearning.seldon.io/v1", "SeldonDeployment", {"replicas": 3, "predictors": [LEVELS, PLAIN]})
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "apiVersion: v1\nnvidia.com/gpu: 1"}}
KAITO = {"resource": {"count": 2, "instanceType": "A100"}, "inference": {"template": TEMPLATE}}


def expanded(tmp_path: Path, body: Json, *files: str) -> Expansion:
    return expand(load_text(tmp_path, json.dumps(body)), [], Intake(kinds=known_kinds(files)))


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (PYTORCH, ["w-master-0", "w-worker-0", "w-worker-1"]),
        (JOB_SET, ["w-driver-0", *(f"w-workers-{i}" for i in range(4))]),
        (
            changed(JOB_SET, "spec.replicatedJobs.1.template.spec.parallelism", 8),
            ["w-driver-0", *(f"w-workers-{i}" for i in range(4))],
        ),
        (of_kind("ray.io/v1", "RayCluster", RAY), ["w-head", *(f"w-small-{i}" for i in range(4))]),
        (GROUPS, ["w-0", "w-1", *(f"w-worker-{i}" for i in range(4))]),
        (ROLLOUT, ["w-0", "w-1"]),
        (
            of_kind(
                "batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"name": "a", "replicas": 2, "template": TEMPLATE}]}
            ),
            ["w-a-0", "w-a-1"],
        ),
        (ROLLOUT | {"apiVersion": "apps.openshift.io/v1", "kind": "DeploymentConfig"}, ["w-0", "w-1"]),
        (
            of_kind(
                "serving.kserve.io/v1alpha1",
                "LLMInferenceService",
                {
                    "replicas": 2,
                    "parallelism": {"data": 16, "dataLocal": 8},
                    "template": TEMPLATE,
                    "worker": TEMPLATE,
                    "prefill": {"parallelism": {"pipeline": 2}, "template": TEMPLATE, "worker": TEMPLATE},
                },
            ),
            ["w-0", "w-1", "w-worker-0", "w-worker-1", "w-prefill-0", "w-prefill-worker-0"],
        ),
        (
            of_kind(
                "nvidia.com/v1beta1",
                "DynamoGraphDeployment",
                {"components": [{"name": "a", "multinode": {"nodeCount": 2}, "podTemplate": TEMPLATE}]},
            ),
            ["w-a-0", "w-a-1"],
        ),
        (
            of_kind(
                "kueue.x-k8s.io/v1beta1", "Workload", {"podSets": [{"name": "m", "count": 3, "template": TEMPLATE}]}
            ),
            ["w-m-0", "w-m-1", "w-m-2"],
        ),
        (SELDON, ["w-a-0-0", "w-a-1-0", "w-a-1-1", "w-b-0-0", "w-b-0-1", "w-b-0-2"]),
        (of_kind("kaito.sh/v1beta1", "Workspace", {}) | KAITO, ["w-0", "w-1"]),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_the_pods_of_each_kind(tmp_path: Path, body: Json, names: list[str]) -> None:
    found = expanded(tmp_path, body).pods
    assert [pod.metadata.name for pod in found] == names
    assert {
        (pod.metadata.labels["app"], pod.spec.containers[0].resources.limits["aliyun.com/gpu-mem"]) for pod in found
    } == {("x", 2)}
    assert {(owner.kind, owner.name) for pod in found for owner in pod.metadata.owner_references} == {
        (body["kind"], "w")
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            changed(PYTORCH, "spec.pytorchReplicaSpecs.Worker.replicas", "2"),
            "Worker.replicas: must be a whole number, is a string",
        ),
        (
            changed(JOB_SET, "spec.replicatedJobs.1.template.spec.template.spec.toleration", []),
            r"replicatedJobs\[1\].template.spec.template.spec.toleration: unknown field; did you mean tolerations",
        ),
        (changed(PYTORCH, "metadata", []), "metadata: must be a mapping, is a list"),
        (
            changed(GROUPS, "metadata.annotations", {"leaderworkerset.sigs.k8s.io/exclusive-topology": "zone"}),
            r"annotations\[leaderworkerset.*/exclusive-topology\]: which domains its pods get is not judged here",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused(tmp_path: Path, body: Json, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        expanded(tmp_path, body)


@pytest.mark.parametrize(
    ("body", "pods", "said"),
    [
        (
            changed(PYTORCH, "spec.pytorchReplicaSpecs.Worker", {"replicas": 2, "tempate": TEMPLATE}),
            3,
            "2 pods of spec.pytorchReplicaSpecs.Worker.tempate",
        ),
        (changed(PYTORCH, "spec.pytorchReplicaSpecs", {}), 0, "no pods of it are judged"),
        (of_kind("ray.io/v1", "RayJob", {"clusterSelector": {"ray.io/cluster": "c"}}), 0, "no pods of it are judged"),
        (of_kind("kaito.sh/v1", "Machine", {"instanceType": "A100"}), 0, "names instanceType A100: no pods"),
        (of_kind("kaito.sh/v1", "Workspace", {"mig": {"profile": "1g.10gb"}}), 0, "but names 1g.10gb: no pods"),
        (CONFIG_MAP, 0, 'data["a"] is a manifest in a text, and names GPUs'),
    ],
)
def test_a_template_elsewhere_or_none_is_told(tmp_path: Path, body: Json, pods: int, said: str) -> None:
    found = expanded(tmp_path, body)
    assert len(found.pods) == pods
    assert said in " ".join(map(str, found.notes))


@pytest.mark.parametrize(
    ("body", "path", "value"),
    [
        (PYTORCH, "spec.runPolicy.suspend", True),
        (NOTEBOOK, "metadata.annotations.kubeflow-resource-stopped", ""),
    ],
    ids=["PyTorchJob", "Notebook"],
)
def test_a_suspended_one_makes_no_pods_in_a_cluster(tmp_path: Path, body: Json, path: str, value: object) -> None:
    """A new one is judged as if it were resumed."""
    suspended = changed(body, path, value)
    found = expanded(tmp_path, changed(suspended, "metadata.uid", "u"))
    assert (found.pods, "is suspended and makes no pods" in found.notes[-1].text) == ([], True)
    new = expanded(tmp_path, suspended)
    assert len(new.pods) == len(expanded(tmp_path, body).pods)
    assert any("judged as if it were resumed" in note.text for note in new.notes)


MORE = """
apiVersion: gputile.io/v1alpha1
kind: PodKinds
kinds:
- apiVersion: example.com/v1
  kind: Training
  pods:
  - template: spec.stages.*.workers.template
    count: [spec.stages.*.workers.number, {path: spec.rounds, default: 2}]
    name: "{name}-{key}-{number}-x"
    labels: {example.com/stage: "{key}"}
- {apiVersion: example.com/v1, kind: Dataset}
"""


def test_people_add_kinds_by_a_file(tmp_path: Path) -> None:
    more = write(tmp_path, MORE, "kinds.yaml")
    stages = [{"name": "one", "workers": {"number": 1, "template": TEMPLATE}}, {"workers": {"template": TEMPLATE}}]
    body = of_kind("example.com/v1", "Training", {"stages": stages})
    found = expanded(tmp_path, body, more).pods
    assert [pod.metadata.name for pod in found] == ["w-one-0-x", "w-one-1-x", "w-1-0-x", "w-1-1-x"]
    assert found[0].metadata.labels["example.com/stage"] == "one"
    notes = expanded(tmp_path, of_kind("example.com/v1", "Dataset", {}), more).notes
    assert notes == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("template: spec", "templates: spec", "templates: unknown field; did you mean template"),
        ("kind: PodKinds", "kind: Kinds", "kind: must be PodKinds of gputile.io/v1alpha1"),
        ("kinds:", "kind_: 5\nkinds:", "kind_: unknown field; did you mean kind"),
        ("kinds:", "kinds:\n- {apiVersion: apps/v1, kind: Deployment}", "is a kind of Kubernetes"),
    ],
)
def test_a_table_that_is_wrong_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        known_kinds([write(tmp_path, MORE.replace(old, new))])


def test_unknown_kinds_by_the_command(tmp_path: Path) -> None:
    """Amounts of which no pod can be made are an error, unless they are ignored or --kinds tells of the pods."""
    spec = {"stages": [{"workers": {"template": TEMPLATE}}], "each": {"nvidia.com/gpu": 1}}
    body = json.dumps(of_kind("example.com/v1", "Training", spec))
    files = ["--cluster", write(tmp_path, CLUSTER, "cluster.yaml"), "-f", write(tmp_path, body, "w.yaml")]
    assert run.invoke(app, ["simulate", *files]).exit_code == 2
    ignored = run.invoke(app, ["simulate", *files, "--ignore-unknown"])
    assert (ignored.exit_code, "ignored: spec.each.nvidia.com/gpu: it asks for GPUs" in ignored.stderr) == (0, True)
    more = write(tmp_path, MORE, "kinds.yaml")
    assert "w-0-1-x" in run.invoke(app, ["simulate", *files, "--kinds", more, "-o", "wide"]).stdout
    wrong = run.invoke(app, ["simulate", *files, "--kinds", write(tmp_path, "kind: 1", "wrong.yaml")])
    assert (wrong.exit_code, "kind: must be a string" in wrong.stderr) == (2, True)
    old = write(tmp_path, json.dumps(of_kind("extensions/v1beta1", "Deployment", {})), "w.yaml")
    assert run.invoke(app, ["simulate", *files[:2], "-f", old, "--ignore-unknown"]).exit_code == 2


GPU = "{limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 1}}"


def by_shape(tmp_path: Path, kind: str, spec: str) -> Expansion:
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
            f"{{predictor: {{minReplicas: 0, containers: [{{name: c, image: i, resources: {GPU}}}]}}}}",
            ["x-predictor-0"],
            ["1 pod of spec.predictor (spec.predictor.minReplicas (is 0: judged as if 1)), nvidia.com/gpu: 1"],
            id="KServe's own containers, scaled to 0",
        ),
        *(
            pytest.param(
                "serving.knative.dev/v1/Service",
                f"{{template: {{metadata: {{annotations: {{autoscaling.knative.dev/{name}: '2'}}}}, spec: "
                f"{{containers: [{{name: c, image: i, resources: {GPU}}}]}}}}}}",
                ["x-0", "x-1"],
                [f"2 pods of spec.template (spec.template.metadata.annotations.autoscaling.knative.dev/{name})"],
                id=f"Knative's {name}",
            )
            for name in ("min-scale", "minScale")
        ),
        pytest.param(
            "argoproj.io/v1alpha1/Workflow",
            "{templates: [{steps: [[{name: s, template: t, withItems: [a, b]}]]}, "
            f"{{name: t, container: {{image: i, resources: {GPU}}}}}]}}",
            ["x-container-0"],
            [
                "spec.templates[0].steps[0][0].withItems runs its template once per item: "
                "the pods of one item are judged",
                "1 pod of spec.templates[1].container, nvidia.com/gpu: 1",
            ],
            id="a step of Argo that runs once per item",
        ),
        pytest.param(
            "serving.kserve.io/v1beta1/InferenceService",
            f"{{predictor: {{containers: [{{name: proxy, image: i}}], model: {{resources: {GPU}}}}}}}",
            ["x-predictor-0"],
            ["1 pod of spec.predictor, nvidia.com/gpu: 1"],
            id="a model beside its containers is one of them",
        ),
        pytest.param(
            "serving.kserve.io/v1alpha1/LLMService",
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
            "workload.codeflare.dev/v1beta2/AppWrapper",
            "{components: [{template: {apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: t}, "
            "spec: {pytorchReplicaSpecs: {Worker: {replicas: 2, template: "
            f"{{spec: {{containers: [{{name: p, image: i, resources: {GPU}}}]}}}}}}}}}}}}}}]}}",
            ["t-worker-0", "t-worker-1"],
            [],
            id="a workload within another object",
        ),
        pytest.param(
            "workload.codeflare.dev/v1beta2/AppWrapper",
            "{components: [{template: {apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, "
            "metadata: {name: s}, spec: {leaderWorkerTemplate: {size: 3, workerTemplate: "
            f"{{spec: {{containers: [{{name: p, image: i, resources: {GPU}}}]}}}}}}}}}}}}]}}",
            ["s-0", "s-worker-0", "s-worker-1"],
            [],
            id="a workload within another object, whose pods only the table can count",
        ),
        pytest.param(
            "grove.io/v1alpha1/PodCliqueSet",
            "{replicas: 2, template: {podCliqueScalingGroups: [{name: g, replicas: 2, cliqueNames: [b]}], cliques: "
            "[{name: b, spec: {replicas: 2, podSpec: "
            f"{{containers: [{{name: c, image: i, resources: {GPU}}}]}}}}}}]}}}}",
            [f"x-b-{i}" for i in range(8)],
            [
                "8 pods of spec.template.cliques[0].spec.podSpec (spec.replicas x "
                "spec.template.podCliqueScalingGroups[0].replicas x spec.template.cliques[0].spec.replicas), nvidia"
            ],
            id="groups that name what they multiply",
        ),
        pytest.param(
            "serving.kserve.io/v1alpha1/ServingRuntime",
            f"{{containers: [{{name: c, image: i, resources: {GPU}}}]}}",
            [],
            ["describes pods for other objects, and makes none itself: the GPUs of pods that others make of it"],
            id="a template for other objects",
        ),
        pytest.param(
            "flink.apache.org/v1beta1/FlinkDeployment",
            "{flinkConfiguration: {external-resource.gpu.kubernetes.config-key: nvidia.com/gpu}}",
            [],
            ["has no template of pods, but names nvidia.com/gpu: no pods of it are judged"],
            id="a GPU resource outside of amounts",
        ),
        pytest.param(
            "karpenter.sh/v1/NodePool",
            "{limits: {nvidia.com/gpu: 8}, template: {spec: {taints: [{key: nvidia.com/gpu, effect: NoSchedule}]}}}",
            [],
            ["has no template of pods: no pods of it are judged"],
            id="a bound",
        ),
        pytest.param(
            "leaderworkerset.x-k8s.io/v1/LeaderWorkerSet",
            f"{{replicas: 0, leaderWorkerTemplate: {{size: 3, workerTemplate: {{spec: "
            f"{{containers: [{{name: c, image: i, resources: {GPU}}}]}}}}}}}}",
            ["x-0", "x-worker-0", "x-worker-1"],
            ["1 pod of spec.leader", "2 pods of spec.leaderWorkerTemplate.workerTemplate (spec.replicas (is 0: judged"],
            id="a kind of the table that is scaled to 0",
        ),
        pytest.param(
            "slurm.nebius.ai/v1/SlurmCluster",
            "{slurmNodes: {worker: {size: 2, slurmd: {image: i, resources: {nvidia.com/gpu: 8}}}}}",
            ["x-worker-0", "x-worker-1"],
            [],
            id="a number that the shape does not tell",
        ),
        pytest.param(
            "ome.io/v1beta1/DedicatedAICluster",
            f"{{profile: p, count: 2, resources: {GPU}}}",
            ["x-0", "x-1"],
            [],
            id="a number beside resources",
        ),
        ("scheduling.x-k8s.io/v1alpha1/ElasticQuota", "{max: {nvidia.com/gpu: 8}}", [], ["has no template of pods"]),
        pytest.param(
            "karpenter.sh/v1/NodeClaim",
            "{resources: {requests: {nvidia.com/gpu: 8}}, a: {nvidia.com/gpu: 8}}",
            [],
            ["has no template of pods: no pods of it are judged"],
            id="a node",
        ),
        pytest.param(
            "argoproj.io/v1alpha1/Workflow",
            "{parallelism: 9, templates: [{name: a, nodeSelector: {a: b}, "
            f"container: {{image: i, resources: {GPU}}}}}]}}",
            ["x-container-0"],
            ["1 pod of spec.templates[0].container, nvidia.com/gpu: 1"],
            id="an upper bound of pods",
        ),
        pytest.param(
            "monitoring.coreos.com/v1/Prometheus",
            "{containers: [{name: config-reloader, image: i, args: a}]}",
            [],
            ["1 pod of spec, no GPU", "ignored: "],
            id="containers that are not a pod's, without a GPU",
        ),
        pytest.param(
            "workloads.x-k8s.io/v1alpha2/RoleBasedGroup",
            "{roles: [{name: a, replicas: 2, group: {size: 3, templateRef: {name: t, patch: {spec: {containers: "
            "[{name: c, command: [x]}]}}}}}], roleTemplates: [{name: t, template: {spec: "
            f"{{containers: [{{name: c, image: i, resources: {GPU}}}]}}}}}}]}}",
            [f"x-group-{i}" for i in range(6)],
            ["6 pods of spec.roles[0].group.templateRef (spec.roles[0].replicas x spec.roles[0].group.size), nvidia"],
            id="a template that is referred to, groups of a size, and a patch without an image",
        ),
        pytest.param(
            "sparkoperator.k8s.io/v1beta2/SparkApplication",
            "{driver: {cores: 1}, executor: {instances: 2, memory: 1g, gpu: {name: nvidia.com/gpu, quantity: 1}}}",
            ["x-executor-0", "x-executor-1"],
            ["2 pods of spec.executor (spec.executor.instances), nvidia.com/gpu: 1"],
            id="a resource and its quantity apart",
        ),
        pytest.param(
            "nvidia.com/v1/Graph",
            "{worker: {device: {resources: {nvidia.com/gpu: '1', nvidia.com/gpumem: '3000'}}}, "
            f"warm: {{initContainers: [{{name: g, image: i, resources: {GPU}}}], "
            "containers: [{name: c, image: i}]}}",
            ["x-device-0", "x-warm-0"],
            [
                "1 pod of spec.worker.device, nvidia.com/gpu: 1, nvidia.com/gpumem: 3000",
                "1 pod of spec.warm, nvidia.com/gpu: 1",
            ],
            id="resources without limits, and a GPU of an init container",
        ),
        pytest.param(
            "argoproj.io/v1alpha1/Workflow",
            "{templates: [{name: a, resource: {manifest: 'apiVersion: batch/v1, limits: {nvidia.com/gpu: 1}'}}]}",
            [],
            ["spec.templates[0].resource.manifest is a manifest in a text", "has no template of pods"],
            id="a manifest in a text",
        ),
        pytest.param(
            "example.com/v1/Engine",
            f"{{a: [{{name: gpu, replicas: 2, pods: {{containers: [{{name: c, image: i, resources: {GPU}}}]}}}}]}}",
            ["x-pods-0", "x-pods-1"],
            ["2 pods of spec.a[0].pods (spec.a[0].replicas), nvidia.com/gpu: 1"],
            id="a group called gpu",
        ),
        pytest.param(
            "example.com/v1/Engine",
            "{a: {resources: {limits: {gpu: 1, cpu: 2, custom: {k: v}}}}, b: {a: {resources: {limits: {gpu: '2'}}}}}",
            ["x-spec-a-0", "x-spec-b-a-0"],
            ["1 pod of spec.a, nvidia.com/gpu: 1", "1 pod of spec.b.a, nvidia.com/gpu: 2"],
            id="amounts called gpu, and two of one name",
        ),
    ],
)
def test_the_pods_of_any_kind(tmp_path: Path, kind: str, spec: str, names: list[str], said: list[str]) -> None:
    expansion = by_shape(tmp_path, kind, spec)
    assert [pod.metadata.name for pod in expansion.pods] == names
    found = told(expansion)
    assert len(found) == len(said)
    assert all(text.startswith(begin) for text, begin in zip(found, said, strict=True)), found


@pytest.mark.parametrize(
    ("kind", "spec", "where"),
    [
        (
            "kubevirt.io/v1/VirtualMachine",
            "{template: {spec: {domain: {devices: {gpus: [{name: a, deviceName: nvidia.com/A40-6Q}]}}}}}",
            r"devices.gpus\[0\].deviceName",
        ),
        ("example.com/v1/Service", "{devices: [{deviceClassName: gpu.nvidia.com}]}", r"devices\[0\].deviceClassName"),
        ("kubeai.org/v1/Model", "{minReplicas: 1, resourceProfile: 'nvidia-gpu-l4:1'}", "spec.resourceProfile"),
        (
            "kserve.io/v1/Predictor",
            "{a: {resourceClaims: [{name: g, resourceClaimTemplateName: o}]}}",
            r"Claims\[0\].resourceClaimTemplateName",
        ),
        ("helm.toolkit.fluxcd.io/v2/HelmRelease", "{values: {requestGPU: 1}}", "spec.values.requestGPU"),
        ("run.ai/v2alpha1/TrainingWorkload", "{gpu: {value: '0.5'}}", "spec.gpu"),
        ("run.ai/v2alpha1/TrainingWorkload", "{gpuDevices: {value: 2}}", "spec.gpuDevices"),
        ("run.ai/v2alpha1/InferenceWorkload", "{gpuMemory: {value: 20G}}", "spec.gpuMemory"),
        ("training.example.com/v1/TrainJob", "{numNodes: 4, gpusPerNode: 8}", "spec.gpusPerNode"),
        ("example.com/v1/Training", "{limits: [{name: GPU, value: '1'}]}", r"limits\[0\].value"),
        ("example.com/v1/Training", "{perWorker: {nvidia.com/gpu: 2}}", "spec.perWorker.nvidia.com/gpu"),
    ],
)
def test_gpus_of_which_no_pod_can_be_made_are_an_error(tmp_path: Path, kind: str, spec: str, where: str) -> None:
    with pytest.raises(ManifestError, match=f"{where}: it asks for GPUs, but for which pods is unknown"):
        by_shape(tmp_path, kind, spec)


def test_a_template_with_gpus_that_is_wrong_is_an_error(tmp_path: Path) -> None:
    spec = f"{{predictor: {{containers: [{{name: c, imag: i, resources: {GPU}}}]}}}}"
    with pytest.raises(ManifestError, match="imag: unknown field; did you mean image"):
        by_shape(tmp_path, "serving.kserve.io/v1beta1/InferenceService", spec)
