import json
import re
from pathlib import Path

import pytest
import yaml

from gputile.api.affinity import NodeSelectorTerm
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import WHOLE_GPU
from gputile.core.admission.gpu_requests import asks_for_gpu
from gputile.tools.simulator.admission import Admission
from gputile.tools.simulator.generated import make_uid
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.simulation import Simulation
from gputile.tools.simulator.workloads import Expansion, Intake, expand
from tests.unit.tools.simulator.builders import expand_text, load_text, node, scenario
from tests.walk.documents import document_yaml

CONTAINER = "{name: c, image: i}"
TEMPLATE = (
    f"template: {{metadata: {{labels: {{app: x}}, annotations: {{note: 'y'}}}}, spec: {{containers: [{CONTAINER}]}}}}"
)
OF_JOBS = TEMPLATE.replace("spec: {", "spec: {restartPolicy: Never, ")
CRON = (
    "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: w}\n"
    f"spec: {{schedule: '* * * * *', jobTemplate: {{spec: {{parallelism: 2, {OF_JOBS}}}}}}}"
)


def workload(kind: str, spec: str = "", api: str = "apps/v1", name: str = "w") -> str:
    fields = f"{spec}, " if spec else ""
    if api == "apps/v1":
        fields += "selector: {matchLabels: {app: x}}, "
    template = OF_JOBS if kind == "Job" else TEMPLATE
    return f"apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{fields}{template}}}\n"


def names(expansion: Expansion) -> list[str]:
    return [pod.metadata.name for pod in expansion.pods]


def required_terms(pod: Pod) -> tuple[NodeSelectorTerm, ...]:
    assert pod.spec.affinity is not None
    affinity = pod.spec.affinity.node_affinity
    assert affinity is not None
    assert affinity.required is not None
    return affinity.required.node_selector_terms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (workload("Deployment", "replicas: 3"), ["w-xmlc6", "w-zhzkq", "w-2cfsc"]),
        (workload("Deployment"), ["w-xmlc6"]),
        (workload("Deployment", "replicas: null"), ["w-xmlc6"]),
        (workload("Deployment", "replicas: 0"), ["w-xmlc6"]),
        (workload("Deployment", "replicas: 3, paused: true"), []),
        (workload("ReplicaSet", "replicas: 1"), ["w-9p9k2"]),
        (workload("ReplicationController", "replicas: 1", "v1"), ["w-j69n7"]),
        (workload("StatefulSet", "replicas: 3"), ["w-0", "w-1", "w-2"]),
        (workload("StatefulSet", "replicas: 2, ordinals: {start: 5}"), ["w-5", "w-6"]),
        (workload("Job", api="batch/v1"), ["w-hsr5g"]),
        (workload("Job", "parallelism: 2", "batch/v1"), ["w-hsr5g", "w-vrw6x"]),
        (workload("Job", "parallelism: 0", "batch/v1"), []),
        (workload("Job", "parallelism: 5, completions: 1", "batch/v1"), ["w-hsr5g"]),
        (workload("Job", "parallelism: 2, completions: 9", "batch/v1"), ["w-hsr5g", "w-vrw6x"]),
        (
            workload("Job", "parallelism: 2, completions: 2, completionMode: Indexed", "batch/v1"),
            ["w-0-hsr5g", "w-1-vrw6x"],
        ),
        (workload("Job", "suspend: true", "batch/v1"), ["w-hsr5g"]),
        ("apiVersion: v1\nkind: Pod\nmetadata: {generateName: g-}\nspec: {containers: [{name: c, image: i}]}", None),
        (CRON, None),
    ],
)
def test_names_are_the_same_every_time(tmp_path: Path, text: str, expected: list[str] | None) -> None:
    first, second = expand_text(tmp_path, text), expand_text(tmp_path, text)
    assert names(first) == names(second)
    if expected is not None:
        assert names(first) == expected
    assert [p.metadata.uid for p in first.pods] == [p.metadata.uid for p in second.pods]


def test_what_a_pod_of_a_workload_carries(tmp_path: Path) -> None:
    (pod,) = expand_text(tmp_path, workload("StatefulSet")).pods
    assert pod.key == "default/w-0"
    assert pod.metadata.labels["app"] == "x"
    assert pod.metadata.annotations == {"note": "y"}
    (owner,) = pod.metadata.owner_references
    assert (owner.kind, owner.name, owner.uid, owner.controller) == (
        "StatefulSet",
        "w",
        make_uid("StatefulSet", "default", "w"),
        True,
    )


HASH = "?"
JOB_UID = make_uid("Job", "default", "w")
OF_JOB = {"job-name": "w", "batch.kubernetes.io/job-name": "w"} | {
    "controller-uid": JOB_UID,
    "batch.kubernetes.io/controller-uid": JOB_UID,
}


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("text", "labels", "annotations"),
    [
        (workload("ReplicaSet"), {}, {}),
        (workload("Deployment"), {"pod-template-hash": HASH}, {}),
        (
            workload("StatefulSet", "ordinals: {start: 3}"),
            {
                "controller-revision-hash": HASH,
                "statefulset.kubernetes.io/pod-name": "w-3",
                "apps.kubernetes.io/pod-index": "3",
            },
            {},
        ),
        (workload("DaemonSet"), {"controller-revision-hash": HASH, "pod-template-generation": "1"}, {}),
        (workload("Job", api="batch/v1"), OF_JOB, {}),
        (
            workload("Job", "completionMode: Indexed", "batch/v1"),
            {**OF_JOB, "batch.kubernetes.io/job-completion-index": "0"},
            {"batch.kubernetes.io/job-completion-index": "0"},
        ),
    ],
)
def test_pods_carry_what_their_controllers_add(
    tmp_path: Path, text: str, labels: dict[str, str], annotations: dict[str, str]
) -> None:
    """Names and places as in Kubernetes 1.36."""
    (pod,) = expand_text(tmp_path, text, [node("n")]).pods
    found = {key: HASH if key.endswith("-hash") else value for key, value in pod.metadata.labels.items()}
    assert found == {"app": "x", **labels}
    assert pod.metadata.annotations == {"note": "y", **annotations}


def test_what_a_template_says_goes_before_a_jobs_labels_and_a_cron_job_makes_a_job(tmp_path: Path) -> None:
    said = workload("Job", api="batch/v1").replace("{app: x}", "{job-name: mine}")
    assert expand_text(tmp_path, said).pods[0].metadata.labels["job-name"] == "mine"
    first, second = expand_text(tmp_path, CRON).pods
    assert first.metadata.labels == second.metadata.labels
    assert re.fullmatch(r"w-[0-9]{8}", first.metadata.labels["batch.kubernetes.io/job-name"])


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("kind", "spec", "key"),
    [
        ("Job", "parallelism: 2", "job-name"),
        ("Job", "parallelism: 2", "batch.kubernetes.io/controller-uid"),
        ("StatefulSet", "replicas: 2", "apps.kubernetes.io/pod-index"),
        ("Deployment", "replicas: 2", "pod-template-hash"),
    ],
)
def test_rules_on_labels_of_controllers_keep_pods_apart(tmp_path: Path, kind: str, spec: str, key: str) -> None:
    """A rule that means the pods of one workload means them here too."""
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchExpressions": [{"key": key, "operator": "Exists"}]},
    }
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    api = "batch/v1" if kind == "Job" else "apps/v1"
    text = workload(kind, spec, api).replace("containers:", f"affinity: {json.dumps(rule)}, containers:")
    for nodes in (1, 2):
        cluster = f"{{apiVersion: gputile.io/v1alpha1, kind: Cluster, nodes: [{{name: 'n', count: {nodes}}}]}}\n"
        found = Simulation(Configuration()).run(scenario(tmp_path, text, cluster), lambda: 1)
        assert len([outcome for outcome in found if outcome.node]) == nodes


def test_a_daemon_set_goes_to_each_node_that_it_may_run_on(tmp_path: Path) -> None:
    nodes = [node("a", {"gpu": "yes"}), node("b"), node("c", {"gpu": "yes"}, unschedulable=True)]
    nodes.append(node("d", {"gpu": "yes"}, taints=[{"key": "k"}]))
    text = workload("DaemonSet").replace("spec: {containers", "spec: {nodeSelector: {gpu: 'yes'}, containers")
    pods = expand_text(tmp_path, text, nodes).pods
    pins = [required_terms(p)[0].match_fields[0] for p in pods]
    assert [(pin.key, pin.operator, pin.values) for pin in pins] == [
        ("metadata.name", "In", ("a",)),
        ("metadata.name", "In", ("c",)),
    ]
    none = expand_text(tmp_path, text, [node("b")])
    assert (none.pods, "no node that it may run on" in none.notes[0].text) == ([], True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (workload("Deployment", "replicas: 100001"), "spec.replicas: must be 0 to 100000, is 100001"),
        (workload("Deployment", name="w, namespace: a.b"), 'metadata.namespace: Invalid value: "a.b": must be'),
        (workload("Deployment").replace(f"[{CONTAINER}]", "[null]"), r"containers\[0\]: must be a mapping, is nothing"),
        (workload("Deployment") + "---\n" + workload("Deployment"), "the same Deployment is already in .*document 1"),
        (
            workload("StatefulSet") + "---\napiVersion: v1\nkind: Pod\nmetadata: {name: w-0}\n"
            f"spec: {{containers: [{CONTAINER}]}}",
            "Pod/w-0: metadata.name: there is already a pod default/w-0",
        ),
        (
            workload("Deployment").replace("image: i", "image: i, resources: {limits: {nvidia.com/gpu: .nan}}"),
            "nan is no finite number",
        ),
        (
            workload("Deployment")
            .replace("image: i", "image: i, resources: {claims: [{name: x}]}")
            .replace("containers:", "resourceClaims: [{name: x, resourceClaimName: 'y'}], containers:"),
            "spec.template.spec.resourceClaims: there is no ResourceClaim default/y to judge",
        ),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        expand_text(tmp_path, text)


LEGACY = """
apiVersion: v1
kind: Pod
metadata:
  name: p
  annotations: {keep: me, scheduler.alpha.kubernetes.io/affinity: '%s'}
spec: {%scontainers: [{name: c, image: i}]}
"""
IN = (
    '{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": '
    '[{"key": "alpha.kubernetes.io/nvidia-gpu-name", "operator": "In", "values": ["Tesla K80"]}]}]}}}'
)


def test_the_affinity_annotation_becomes_affinity(tmp_path: Path) -> None:
    expansion = expand_text(tmp_path, LEGACY % (IN, ""))
    (pod,) = expansion.pods
    (term,) = required_terms(pod)
    assert term.match_expressions[0].values == ("Tesla-K80",)
    assert pod.metadata.annotations == {"keep": "me"}
    assert "is read as spec.affinity" in expansion.notes[0].text


def test_bound_pending_and_finished_pods(tmp_path: Path) -> None:
    def pod(name: str, more: str) -> str:
        return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\n{more}\n---\n"

    containers = f"containers: [{CONTAINER}]"
    text = (
        pod("bound", f"spec: {{nodeName: 'n', {containers}}}")
        + pod("pending", f"spec: {{{containers}}}")
        + pod("finished", f"spec: {{nodeName: 'n', {containers}}}\nstatus: {{phase: Failed}}")
    )
    found = scenario(tmp_path, text)
    assert [p.metadata.name for p in found.bound if not p.finished] == ["bound"]
    assert [p.metadata.name for p in found.pending] == ["pending"]


@pytest.mark.parametrize("enforced", [True, False])
def test_a_new_pod_that_names_its_node_is_not_judged(tmp_path: Path, enforced: bool) -> None:
    """kube-scheduler never sees it: neither the node that it names nor what it asks for there would be looked at."""
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {nodeName: 'n', containers: [{name: c, image: i}]}\n"
    intake = Intake(Admission(enforced=enforced))
    with pytest.raises(ManifestError, match=r"Pod/p: spec\.nodeName: n passes kube-scheduler by, .* use nodeSelector"):
        expand(load_text(tmp_path, text), [], intake)


def limits(pod: Pod) -> list[dict[str, str | int | float]]:
    return [dict(c.resources.limits) for c in pod.spec.containers]


@pytest.mark.parametrize("name", ["000", "001"])
def test_the_stateful_set_of_the_documents(tmp_path: Path, name: str) -> None:
    (text,) = document_yaml(name)
    (pod,) = expand_text(tmp_path, text).pods
    assert (pod.key, limits(pod)) == ("default/binpack-0", [{"aliyun.com/gpu-mem": 16}])


def test_the_jobs_of_the_documents(tmp_path: Path) -> None:
    first, second = document_yaml("003")
    (wanted,) = expand_text(tmp_path, first).pods
    (unwanted,) = expand_text(tmp_path, second).pods
    assert wanted.spec.node_selector == {"aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-32GB"}
    term = required_terms(unwanted)[0]
    assert (term.match_expressions[0].operator, limits(unwanted)) == ("NotIn", [{"nvidia.com/gpu": 1}])


def test_the_pods_of_the_documents(tmp_path: Path) -> None:
    first, second, third = document_yaml("004")
    (five,) = expand_text(tmp_path, first).pods
    assert limits(five) == [{WHOLE_GPU: 2}, {WHOLE_GPU: 3}]
    with pytest.raises(ManifestError, match=r'no matches for kind "pod" in version "v1"; did you mean Pod\?'):
        expand_text(tmp_path, second)
    second = second.replace("kind: pod", "kind: Pod")
    with pytest.raises(ManifestError, match=r"metadata.name: Required value: name or generateName is required"):
        expand_text(tmp_path, second)
    complete = yaml.safe_load(second)
    complete["metadata"]["generateName"] = "p-"
    complete["spec"]["containers"][0]["image"] = "i"
    (by_model,) = expand_text(tmp_path, yaml.safe_dump(complete)).pods
    term = required_terms(by_model)[0]
    assert term.match_expressions[0].values == ("Tesla-K80", "Tesla-P100")
    (mounts,) = expand_text(tmp_path, third).pods
    assert asks_for_gpu(mounts)
