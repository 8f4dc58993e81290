from pathlib import Path

import pytest

from gputile.api.core import Node
from gputile.tools.simulator.manifests import ManifestError, make_uid
from gputile.tools.simulator.workloads import Expansion
from tests.unit.tools.simulator.builders import expand_text, node

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


def homes(found: Expansion) -> list[str]:
    """Return the nodes that a DaemonSet's pods are for."""
    names: list[str] = []
    for pod in found.pods:
        assert pod.spec.affinity is not None
        affinity = pod.spec.affinity.node_affinity
        assert affinity is not None
        assert affinity.required is not None
        (pin,) = affinity.required.node_selector_terms[0].match_fields
        assert (pin.key, pin.operator) == ("metadata.name", "In")
        names += pin.values
    return names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (workload("Deployment", "replicas: 3"), ["w-xmlc6", "w-zhzkq", "w-2cfsc"]),
        (workload("Deployment", "replicas: 0"), ["w-xmlc6"]),
        (workload("Deployment", "replicas: 3, paused: true"), ["w-xmlc6", "w-zhzkq", "w-2cfsc"]),
        (workload("ReplicaSet", "replicas: 1"), ["w-9p9k2"]),
        (workload("StatefulSet", "replicas: 3"), ["w-0", "w-1", "w-2"]),
        (workload("StatefulSet", "replicas: 2, ordinals: {start: 5}"), ["w-5", "w-6"]),
        (workload("Job", "parallelism: 0", "batch/v1"), ["w-hsr5g"]),
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


def test_a_daemon_set_goes_to_each_node_that_it_may_run_on(tmp_path: Path) -> None:
    nodes = [node("a", {"gpu": "yes"}), node("b"), node("c", {"gpu": "yes"}, unschedulable=True)]
    nodes.append(node("d", {"gpu": "yes"}, taints=[{"key": "k"}]))
    text = workload("DaemonSet").replace("spec: {containers", "spec: {nodeSelector: {gpu: 'yes'}, containers")
    assert homes(expand_text(tmp_path, text, nodes)) == ["a", "c"]
    none = expand_text(tmp_path, text, [node("b")])
    assert (none.pods, "no node that it may run on" in none.notes[0].text) == ([], True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
            "nan is not a finite number",
        ),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        expand_text(tmp_path, text)


OF_GPU = "resources: {limits: {aliyun.com/gpu-mem: 2}}"
DAEMON_SET = workload("DaemonSet").replace("image: i", f"image: i, {OF_GPU}")


def gpu_node(name: str) -> Node:
    return node(name, mode="share", gpus={"count": 1, "memory": "16GiB"})


def test_a_toleration_that_admission_adds_comes_too_late(tmp_path: Path) -> None:
    """The pods would be admitted with it, and none is ever made (kubernetes/kubernetes#111590)."""
    said = r"DaemonSet/w: spec\.template\.spec: the DaemonSet never makes a pod for a, b: .*as it is written"
    with pytest.raises(ManifestError, match=said):
        expand_text(tmp_path, DAEMON_SET, [gpu_node("a"), gpu_node("b")])


def test_nodes_that_it_misses_are_told(tmp_path: Path) -> None:
    found = expand_text(tmp_path, DAEMON_SET, [node("plain"), gpu_node("a")])
    assert homes(found) == ["plain"]
    assert any(
        each.text.startswith("it makes no pod for a: its controller chooses nodes by the template")
        for each in found.notes
    )


def test_a_toleration_of_the_template_counts(tmp_path: Path) -> None:
    text = DAEMON_SET.replace("spec: {containers", "spec: {tolerations: [{operator: Exists}], containers")
    found = expand_text(tmp_path, text, [gpu_node("a")])
    assert (homes(found), [str(note) for note in found.notes]) == (["a"], [])
