"""Kinds of others that make pods by templates, and what people add to the table."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.pod_kinds import known_kinds
from gputile.tools.simulator.workloads import Expansion, Intake, expand
from tests.unit.tools.simulator.builders import load_text, write
from tests.unit.tools.simulator.manifests import GONE, JOB, Json, changed, pod_template

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
GROUPS = of_kind(
    "leaderworkerset.x-k8s.io/v1",
    "LeaderWorkerSet",
    {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": TEMPLATE}},
)


def expanded(tmp_path: Path, body: Json, *files: str) -> Expansion:
    return expand(load_text(tmp_path, json.dumps(body)), [], Intake(kinds=known_kinds(files)))


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (PYTORCH, ["w-master-0", "w-worker-0", "w-worker-1"]),
        (of_kind("kubeflow.org/v1", "TFJob", {"tfReplicaSpecs": replicas("tensorflow", PS=1)}), ["w-ps-0"]),
        (of_kind("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": replicas("c", Worker=1)}), ["w-worker-0"]),
        (JOB_SET, ["w-driver-0", *(f"w-workers-{i}" for i in range(4))]),
        (of_kind("ray.io/v1", "RayCluster", RAY), ["w-head", *(f"w-small-{i}" for i in range(4))]),
        (
            of_kind("ray.io/v1", "RayJob", {"rayClusterSpec": RAY}),
            ["w-head", *(f"w-small-{i}" for i in range(4))],
        ),
        (GROUPS, ["w-0", "w-1", *(f"w-worker-{i}" for i in range(4))]),
        (ROLLOUT, ["w-0", "w-1"]),
        (
            of_kind(
                "batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"name": "a", "replicas": 2, "template": TEMPLATE}]}
            ),
            ["w-a-0", "w-a-1"],
        ),
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
            changed(PYTORCH, "spec", {"pytorchReplicaSpec": {}}),
            r"spec.pytorchReplicaSpec: unknown field; did you mean pytorchReplicaSpecs\?",
        ),
        (
            changed(PYTORCH, "spec.pytorchReplicaSpecs", {}),
            "spec.pytorchReplicaSpecs: there is no template of pods: an entry",
        ),
        (
            changed(PYTORCH, "spec.pytorchReplicaSpecs.Worker", {"replicas": 9, "tempate": {}}),
            r"spec.pytorchReplicaSpecs.Worker.tempate: unknown field; did you mean template\?",
        ),
        (
            changed(PYTORCH, "spec.pytorchReplicaSpecs.Worker", {"pod": {}}),
            "spec.pytorchReplicaSpecs.Worker: there is no template of pods: template is missing",
        ),
        (
            changed(PYTORCH, "spec.pytorchReplicaSpecs.Worker", "none"),
            "spec.pytorchReplicaSpecs.Worker: there is no template of pods: template is missing",
        ),
        (
            changed(PYTORCH, "spec.pytorchReplicaSpecs.Worker.replicas", "2"),
            "Worker.replicas: must be a whole number, is a string",
        ),
        (
            changed(PYTORCH, "spec.pytorchReplicaSpecs.Worker.replicas", -1),
            "Worker.replicas: -1 is not in 0 to 100,000",
        ),
        (
            changed(PYTORCH, "spec.pytorchReplicaSpecs.Worker.template", 5),
            "Worker.template: must be a mapping, is a number",
        ),
        (
            changed(JOB_SET, "spec.replicatedJobs.1.template.spec.template.spec.toleration", []),
            r"replicatedJobs\[1\].template.spec.template.spec.toleration: unknown field; did you mean tolerations",
        ),
        (
            changed(PYTORCH, "spec.pytorchReplicaSpecs.Worker.template", {}),
            "Worker.template.spec.containers: Required value",
        ),
        (
            changed(JOB_SET, "spec.replicatedJobs.1.template.spec.template.spec", None),
            r"replicatedJobs\[1\].template.spec.template.spec.containers: Required value",
        ),
        (
            changed(ROLLOUT, "spec", {"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}),
            "spec: there is no template of pods: template is missing",
        ),
        (changed(PYTORCH, "metadata", {}), "metadata.name: Required value"),
        (changed(PYTORCH, "metadata", []), "metadata: must be a mapping, is a list"),
    ],
)
def test_what_cannot_be_judged_is_refused(tmp_path: Path, body: Json, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        expanded(tmp_path, body)


CLUSTER_OF_RAY = of_kind("ray.io/v1", "RayCluster", RAY)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (changed(CLUSTER_OF_RAY, "spec.workerGroupSpecs", GONE), ""),
        (changed(GROUPS, "spec.leaderWorkerTemplate.size", 1), ""),
        (changed(CLUSTER_OF_RAY, "spec.headGroupSpec", GONE), "spec: there is no template of pods: headGroupSpec is"),
        (changed(CLUSTER_OF_RAY, "spec.headGroupSpec", None), "spec: there is no template of pods: headGroupSpec is"),
        (changed(CLUSTER_OF_RAY, "spec.headGroupSpec.template", GONE), "spec.headGroupSpec: there is no template"),
        (changed(GROUPS, "spec.leaderWorkerTemplate.workerTemplate", GONE), "there is no template of pods"),
        (
            changed(changed(CLUSTER_OF_RAY, "spec.workerGroupSpecs", GONE), "spec.workerGroupSpec", []),
            r"spec.workerGroupSpec: unknown field; did you mean workerGroupSpecs\?",
        ),
        (
            changed(
                changed(CLUSTER_OF_RAY, "spec.workerGroupSpecs.0.replicas", GONE), "spec.workerGroupSpecs.0.relicas", 9
            ),
            r"workerGroupSpecs\[0\].relicas: unknown field; did you mean replicas\?",
        ),
    ],
)
def test_a_mistyped_or_missing_field_never_makes_fewer_pods(tmp_path: Path, body: Json, said: str) -> None:
    if not said:
        assert expanded(tmp_path, body).pods
        return
    with pytest.raises(ManifestError, match=said):
        expanded(tmp_path, body)


@pytest.mark.parametrize(
    ("body", "path"),
    [(PYTORCH, "spec.runPolicy.suspend"), (JOB_SET, "spec.suspend")],
    ids=["PyTorchJob", "JobSet"],
)
def test_a_suspended_one_makes_no_pods_in_a_cluster(tmp_path: Path, body: Json, path: str) -> None:
    """A new one is judged as if it were resumed."""
    suspended = changed(body, path, True)
    found = expanded(tmp_path, changed(suspended, "metadata", {"name": "w", "uid": "u"}))
    assert (found.pods, "is suspended and makes no pods" in found.notes[-1].text) == ([], True)
    new = expanded(tmp_path, suspended)
    assert len(new.pods) == len(expanded(tmp_path, body).pods)
    assert any("judged as if it were resumed" in note.text for note in new.notes)


def test_a_stopped_notebook_makes_no_pods(tmp_path: Path) -> None:
    """Its controller looks whether the annotation is there, and not at its value."""
    for version in ("v1", "v1beta1"):
        body = of_kind(f"kubeflow.org/{version}", "Notebook", {"template": TEMPLATE})
        assert [pod.metadata.name for pod in expanded(tmp_path, body).pods] == ["w-0"]
        stopped = changed(body, "metadata.annotations", {"kubeflow-resource-stopped": ""})
        found = expanded(tmp_path, changed(stopped, "metadata.uid", "u"))
        assert (found.pods, "is suspended" in found.notes[-1].text) == ([], True)


def test_a_suspended_one_is_judged(tmp_path: Path) -> None:
    suspended = changed(JOB_SET, "spec.suspend", True)
    path = "spec.replicatedJobs.0.template.spec.template.spec"
    with pytest.raises(ManifestError, match=r"template.spec.template.spec.toleration: unknown field"):
        expanded(tmp_path, changed(suspended, f"{path}.toleration", []))
    seeing_all = [{"name": "c", "image": "i", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]
    with pytest.raises(ManifestError, match="NVIDIA_VISIBLE_DEVICES"):
        expanded(tmp_path, changed(suspended, f"{path}.containers", seeing_all))


def test_a_leader_with_a_template_of_its_own(tmp_path: Path) -> None:
    leader = changed(TEMPLATE, "metadata.labels.app", "leader")
    found = expanded(tmp_path, changed(GROUPS, "spec.leaderWorkerTemplate.leaderTemplate", leader)).pods
    assert [pod.metadata.labels["app"] for pod in found] == ["leader"] * 2 + ["x"] * 4


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
        ("spec.stages.*.workers.number", "spec.*.workers.*.number", "has more .* than the template's path"),
        ("kinds:", "kind_: 5\nkinds:", "kind_: unknown field; did you mean kind"),
        ("kinds:", "kinds:\n- {apiVersion: v1, kind: Pod}", r"kinds\[0\].kind: \"Pod\" of \"v1\" is Kubernetes' own"),
        ("kinds:", "kinds:\n- {apiVersion: apps/v1, kind: Deployment}", "is Kubernetes' own"),
        ("default: 2", "default: -1", "default: must be 0 or more, is -1"),
        ("example.com/stage:", "example.com/a b:", r"kinds\[0\].pods\[0\].labels: Invalid value: .*: a name must be"),
        ('stage: "{key}"', 'stage: "{key}!"', r"kinds\[0\].pods\[0\].labels: Invalid value: .*: a label's value"),
        ("  pods:", '  owned: {a: "!"}\n  pods:', r"kinds\[0\].owned: Invalid value"),
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
    assert (ignored.exit_code, "ignored: spec.each: it asks for GPUs" in ignored.stderr) == (0, True)
    more = write(tmp_path, MORE, "kinds.yaml")
    assert "w-0-1-x" in run.invoke(app, ["simulate", *files, "--kinds", more, "-o", "wide"]).stdout
    wrong = run.invoke(app, ["simulate", *files, "--kinds", write(tmp_path, "kind: 1", "wrong.yaml")])
    assert (wrong.exit_code, "kind: must be there, as a string" in wrong.stderr) == (2, True)
    old = write(tmp_path, json.dumps(of_kind("extensions/v1beta1", "Deployment", {})), "w.yaml")
    assert run.invoke(app, ["simulate", *files[:2], "-f", old, "--ignore-unknown"]).exit_code == 2


@pytest.mark.parametrize(("parallelism", "completions", "pods"), [(8, 4, 4), (2, 4, 2)])
def test_a_jobset_runs_no_more_pods_than_it_completes(
    tmp_path: Path, parallelism: int, completions: int, pods: int
) -> None:
    spec = {"parallelism": parallelism, "completions": completions, "template": TEMPLATE}
    body = of_kind(
        "jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [{"name": "a", "template": {"spec": spec}}]}
    )
    assert len(expand(load_text(tmp_path, json.dumps(body)), []).pods) == pods


@pytest.mark.parametrize(
    ("body", "path", "annotation"),
    [
        (JOB_SET, "metadata.annotations", "alpha.jobset.sigs.k8s.io/exclusive-topology"),
        (JOB_SET, "spec.replicatedJobs.1.template.metadata.annotations", "alpha.jobset.sigs.k8s.io/exclusive-topology"),
        (GROUPS, "metadata.annotations", "leaderworkerset.sigs.k8s.io/exclusive-topology"),
        (GROUPS, "metadata.annotations", "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"),
    ],
)
def test_domains_of_ones_own_are_not_judged(tmp_path: Path, body: Json, path: str, annotation: str) -> None:
    """Webhooks of these kinds write affinities for them, which are not repeated here."""
    asking = changed(body, path, {annotation: "zone", "other": "x"})
    with pytest.raises(
        ManifestError, match=r"annotations\[.*exclusive-topology.*\]: which domains its pods get is not"
    ):
        expand(load_text(tmp_path, json.dumps(asking)), [])


def test_a_rayjob_on_a_cluster_that_is_there_makes_no_cluster(tmp_path: Path) -> None:
    selecting = of_kind("ray.io/v1", "RayJob", {"clusterSelector": {"ray.io/cluster": "c"}, "rayClusterSpec": RAY})
    found = expanded(tmp_path, selecting)
    assert found.pods == []
    assert "spec.clusterSelector: its pods are those of another object" in " ".join(map(str, found.notes))
    assert len(expanded(tmp_path, changed(selecting, "spec.clusterSelector", {})).pods) == 5


def test_two_kinds_of_one_name_are_two_objects(tmp_path: Path) -> None:
    volcano = of_kind("batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"name": "t", "template": TEMPLATE}]})
    assert len(expand(load_text(tmp_path, f"{json.dumps(volcano)}\n{json.dumps(JOB)}"), []).pods) == 2
