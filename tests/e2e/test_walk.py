"""What the documents say of models, their Jobs and early Kubernetes, on a real kubelet with the real agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gputile.api.well_known import MODEL_LABEL, WHOLE_GPU
from tests.e2e.node import VISIBLE, GpuNode, gpu_node, runnable_here
from tests.localcluster.admission import installed
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.documents import document_yaml


@pytest.fixture(scope="module")
def v100(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """Eight Tesla V100-SXM2-32GB, as whole GPUs, and the webhook."""
    with (
        installed(control_plane),
        gpu_node(control_plane, node_programs, "v100", {}, kind="v100") as here,
    ):
        here.wait_offered({WHOLE_GPU: 8})
        yield here


@pytest.mark.requirement("C1", "C3")
def test_the_labels_of_the_model(v100: GpuNode) -> None:
    """As nvidia-smi prints them, and in kubectl's column."""
    labels = v100.node.object()["metadata"]["labels"]
    assert labels[MODEL_LABEL] == labels["alpha.kubernetes.io/nvidia-gpu-name"] == "Tesla-V100-SXM2-32GB"
    assert (labels["aliyun.accelerator/nvidia_mem"], labels["aliyun.accelerator/nvidia_count"]) == ("32510MiB", "8")
    heading, *rows = v100.plane.kubectl("get", "nodes", "-L", MODEL_LABEL).splitlines()
    assert heading.split()[-1] == "NVIDIA_NAME"
    assert "Tesla-V100-SXM2-32GB" in {row.split()[-1] for row in rows}


@pytest.mark.requirement("C2")
def test_the_jobs_of_a_model(v100: GpuNode, namespace: str) -> None:
    """The one that selects the node's model runs, the one that excludes it waits."""
    wanted, avoided = [yaml.safe_load(text) for text in document_yaml("003") if "kind: Job" in text]
    avoided["metadata"]["name"] = "avoiding"
    for job in (wanted, avoided):
        v100.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(runnable_here(job)))
    (pod,) = v100.wait_running(1, namespace)
    assert pod["metadata"]["name"].startswith("tensorflow-mnist")
    assert len(v100.said(pod, "tensorflow-mnist")[VISIBLE].split(",")) == 1
    v100.plane.wait(lambda: len(v100.pods(namespace)) == 2, "the other Job's pod")
    assert {p["metadata"]["name"].rpartition("-")[0]: p["spec"].get("nodeName") for p in v100.pods(namespace)} == {
        "tensorflow-mnist": "v100",
        "avoiding": None,
    }


@pytest.mark.requirement("L2", "L3", "L4", "L5")
def test_pods_of_early_kubernetes_run(v100: GpuNode, namespace: str, tmp_path: Path) -> None:
    """Five GPUs by the old name, the affinity of an annotation, and the libraries by hostPath; on containerd."""
    five, by_model, mounts = (yaml.safe_load(text) for text in document_yaml("004"))
    v100.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(runnable_here(five)))
    (pod,) = v100.wait_running(1, namespace)
    v100.wait_agreement(namespace)
    seen = [v100.said(pod, f"gpu-container-{i}")[VISIBLE].split(",") for i in (1, 2)]
    assert [len(each) for each in seen] == [2, 3]
    assert len({*seen[0], *seen[1]}) == 5
    v100.clear(namespace)
    by_model |= {"kind": "Pod", "metadata": {**by_model["metadata"], "name": "by-model"}}
    annotations = by_model["metadata"]["annotations"]
    (name,) = annotations
    v100.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(runnable_here(by_model)))
    v100.plane.wait(lambda: "by-model" in {p["metadata"]["name"] for p in v100.pods(namespace)}, "the pod")
    assert [p["spec"].get("nodeName") for p in v100.pods(namespace)] == [None], "a V100 is neither of both models"
    v100.delete_now(namespace, "by-model")
    annotations[name] = annotations[name].replace("Tesla K80", "Tesla V100-SXM2-32GB")
    v100.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(runnable_here(by_model)))
    v100.wait_running(1, namespace)
    v100.clear(namespace)
    for volume in mounts["spec"]["volumes"]:
        library = tmp_path / volume["hostPath"]["path"].lstrip("/")
        library.mkdir(parents=True, exist_ok=True)
        volume["hostPath"]["path"] = str(library)
    v100.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(runnable_here(mounts)))
    (pod,) = v100.wait_running(1, namespace)
    assert len(v100.said(pod, "gpu-container-1")[VISIBLE].split(",")) == 1
    v100.clear(namespace)
