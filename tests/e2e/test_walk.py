"""What the documents say of nodes, pods and tables, on a real kubelet with the real agent: see ``tests/walk``."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gputile.api.well_known import (
    GPU_CORE,
    GPU_MEMORY,
    MODE_LABEL,
    MODEL_LABEL,
    PLACEMENT_LABEL,
    TOPOLOGY_GPU,
    WHOLE_GPU,
)
from gputile.node.agent.node_config import MODE_RESOURCES
from tests.e2e.node import ON_NODE, VISIBLE, GpuNode, gpu_node, probe_pod
from tests.localcluster.admission import installed
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.images import PROBE_IMAGE, SHOW
from tests.walk.documents import document_yaml

pytestmark = pytest.mark.requirement("U1", "U3", "M1", "M2", "M3", "V1", "C1")

# The node of document 003: four GPUs of 15 GiB.
OFFERED: tuple[tuple[str | None, dict[str, str]], ...] = (
    (None, {WHOLE_GPU: "4"}),
    ("cgpu", {GPU_MEMORY: "60"}),
    ("share", {GPU_MEMORY: "60"}),
    ("core_mem", {GPU_CORE: "400", GPU_MEMORY: "60"}),
    ("topology", {TOPOLOGY_GPU: "4"}),
    ("default", {WHOLE_GPU: "4"}),
    ("topology", {TOPOLOGY_GPU: "4"}),
    (None, {WHOLE_GPU: "4"}),
)


@pytest.fixture(scope="module")
def four(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """Four GPUs of 15 GiB, without a label."""
    with gpu_node(control_plane, node_programs, "four", {}, kind="fifteen") as here:
        yield here


@pytest.fixture(scope="module")
def v100(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """Eight Tesla V100-SXM2-32GB, as whole GPUs, and the webhook."""
    with (
        installed(control_plane),
        gpu_node(control_plane, node_programs, "v100", {}, kind="v100") as here,
    ):
        wait_offered(here, {WHOLE_GPU: "8"})
        yield here


def wait_offered(here: GpuNode, wanted: dict[str, str]) -> None:
    """Wait until the node object has these resources, and 0 of those of the other modes."""
    everything = dict.fromkeys(MODE_RESOURCES, "0") | wanted

    def offered() -> bool:
        allocatable = here.allocatable()
        return {name: allocatable.get(name, "missing") for name in MODE_RESOURCES} == everything

    here.plane.wait(offered, f"the node to offer {wanted}", interval=0.2)


def test_each_mode_offers_what_it_says(four: GpuNode) -> None:
    """The numbers of the documents, the resources of the other modes 0, and whole GPUs back by both ways."""
    for mode, wanted in OFFERED:
        four.label({MODE_LABEL: mode})
        wait_offered(four, wanted)


@pytest.mark.requirement("M9", "V2")
def test_the_tables_of_binpack_and_spread(four: GpuNode, namespace: str, tmp_path: Path) -> None:
    """15 and 9 units fill one GPU before the next; three times 4 units are on three GPUs."""
    four.label({MODE_LABEL: "cgpu", PLACEMENT_LABEL: "binpack"})
    wait_offered(four, {GPU_MEMORY: "60"})
    for name, units in (("large", 15), ("medium", 5), ("small", 4)):
        four.create(namespace, probe_pod(name, {GPU_MEMORY: units}))
        four.wait_running(1 + ("large", "medium", "small").index(name), namespace)
    four.wait_agreement(namespace)
    assert inspected(four, tmp_path) == (["15/15", "9/15", "0/15", "0/15", "24/60"], "24/60 (40%)")
    four.clear(namespace)
    four.label({PLACEMENT_LABEL: "spread"})
    for i in range(3):
        four.create(namespace, probe_pod(f"p{i}", {GPU_MEMORY: 4}))
        four.wait_running(i + 1, namespace)
    cells, total = inspected(four, tmp_path)
    assert sorted(cells[:4]) == ["0/15", "4/15", "4/15", "4/15"]
    assert (cells[4], total) == ("12/60", "12/60 (20%)")
    four.clear(namespace)
    four.label({PLACEMENT_LABEL: None})


@pytest.mark.requirement("U2", "U5")
def test_units_of_128_mib(four: GpuNode, namespace: str, tmp_path: Path) -> None:
    """The StatefulSet asks for 16 of them: 2 GiB in the container, of 480 on the node."""
    four.label({MODE_LABEL: "share"})
    wait_offered(four, {GPU_MEMORY: "60"})
    four.configure({"gpuMemoryUnit": "128MiB"})
    wait_offered(four, {GPU_MEMORY: "480"})
    stateful = here_runnable(yaml.safe_load(document_yaml("001")[0]))
    four.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(stateful))
    (pod,) = four.wait_running(1, namespace)
    four.wait_agreement(namespace)
    said = four.said(pod, "binpack-1")
    assert said["ALIYUN_COM_GPU_MEM_CONTAINER"] == "16"
    cells, _ = inspected(four, tmp_path)
    assert cells == ["16/120", "0/120", "0/120", "0/120", "16/480"]


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
        v100.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(here_runnable(job)))
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
    v100.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(here_runnable(five)))
    (pod,) = v100.wait_running(1, namespace)
    v100.wait_agreement(namespace)
    seen = [v100.said(pod, f"gpu-container-{i}")[VISIBLE].split(",") for i in (1, 2)]
    assert [len(each) for each in seen] == [2, 3]
    assert len({*seen[0], *seen[1]}) == 5
    v100.clear(namespace)
    by_model |= {"kind": "Pod", "metadata": {**by_model["metadata"], "name": "by-model"}}
    annotations = by_model["metadata"]["annotations"]
    (name,) = annotations
    v100.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(here_runnable(by_model)))
    v100.plane.wait(lambda: "by-model" in {p["metadata"]["name"] for p in v100.pods(namespace)}, "the pod")
    assert [p["spec"].get("nodeName") for p in v100.pods(namespace)] == [None], "a V100 is neither of both models"
    v100.delete_now(namespace, "by-model")
    annotations[name] = annotations[name].replace("Tesla K80", "Tesla V100-SXM2-32GB")
    v100.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(here_runnable(by_model)))
    v100.wait_running(1, namespace)
    v100.clear(namespace)
    for volume in mounts["spec"]["volumes"]:
        library = tmp_path / volume["hostPath"]["path"].lstrip("/")
        library.mkdir(parents=True, exist_ok=True)
        volume["hostPath"]["path"] = str(library)
    v100.plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump(here_runnable(mounts)))
    (pod,) = v100.wait_running(1, namespace)
    assert len(v100.said(pod, "gpu-container-1")[VISIBLE].split(",")) == 1
    v100.clear(namespace)


def here_runnable(body: dict[str, Any]) -> dict[str, Any]:
    """Return a pod, or what makes pods, with the image and the command that the tests' node has."""
    spec = body["spec"]["template"]["spec"] if "template" in body["spec"] else body["spec"]
    spec |= ON_NODE
    for container in spec["containers"]:
        container |= {"image": PROBE_IMAGE, "command": list(SHOW)}
        container.pop("workingDir", None)
    return body


def inspected(here: GpuNode, home: Path) -> tuple[list[str], str]:
    """Return the cells of the node's GPUs in ``kubectl inspect cgpu``, its sum, and the sum below the table."""
    program = str(Path(sys.executable).parent / "kubectl-inspect-cgpu")
    environment = {"PATH": "/usr/bin:/bin", "KUBECONFIG": str(here.plane.kubeconfig()), "HOME": str(home)}
    done = subprocess.run([program, here.node.name], env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    row = next(line.split() for line in lines if line.startswith(f"{here.node.name} "))
    return row[2:], lines[lines.index("Allocated/Total GPU Memory In Cluster:") + 1]
