"""Clusters that no gputile serves: their GPUs and holders are known from what others write, and modes are compared."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.cli.app import app
from gputile.tools.simulator.foreign_cluster import adopted_cluster
from gputile.tools.views.inspect import NodeSummary, node_summaries
from tests.unit.tools.simulator.builders import load_text

GFD = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.product": "Tesla-T4"}
SLICED = {**GFD, "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.product": "Tesla-T4-SHARED"}
HAMI = "GPU-a,10,15360,100,NVIDIA-Tesla T4,0,true:GPU-b,10,15360,100,NVIDIA-Tesla T4:"  # as of two releases
HAMI_JSON = json.dumps(
    [{"id": f"GPU-{x}", "count": 10, "devmem": 15360, "devcore": 100, "type": "Tesla T4", "health": True} for x in "ab"]
)


def node(labels: dict[str, str], capacity: dict[str, Any], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    resources = {"cpu": "32", "memory": "128Gi", "pods": "110", **capacity}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": labels, "annotations": annotations or {}},
        "status": {"capacity": resources, "allocatable": resources},
    }


def pod(name: str, limits: dict[str, Any], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations or {}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }


def summary(tmp_path: Path, objects: list[dict[str, Any]]) -> NodeSummary:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    manifests = load_text(tmp_path, text)
    nodes = [each.decode(Node) for each in manifests if each.kind == "Node"]
    pods = [each.decode(Pod) for each in manifests if each.kind == "Pod"]
    found = adopted_cluster(nodes, pods, 1024)
    (shown,) = node_summaries(found.nodes, found.pods, Configuration(), 0)
    return shown


WHOLE = {"nvidia.com/gpu": 1}


@pytest.mark.parametrize(
    ("objects", "mode", "model", "booked"),
    [
        pytest.param(
            [node(GFD, {"nvidia.com/gpu": "2"}), pod("a", WHOLE)], "default", "Tesla-T4", [15360, 0], id="GFD, whole"
        ),
        pytest.param(
            [node(GFD, {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "7"})],
            "default",
            "Tesla-T4",
            [0],
            id="GFD, one of two GPUs is split by MIG",
        ),
        pytest.param(
            [node(SLICED, {"nvidia.com/gpu": "8"}), *(pod(name, WHOLE) for name in "abc")],
            "default",
            "Tesla-T4",
            [2 * 3840, 3840],
            id="GFD, time-slicing",
        ),
        pytest.param(
            [node(SLICED, {"nvidia.com/gpu.shared": "8"}), pod("a", {"nvidia.com/gpu.shared": 1})],
            "default",
            "Tesla-T4",
            [3840, 0],
            id="time-slicing by the plugin's other name",
        ),
        pytest.param(
            [
                node({}, {"nvidia.com/gpu": "20"}, {"hami.io/node-nvidia-register": HAMI}),
                pod(
                    "a",
                    {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000},
                    {"hami.io/vgpu-devices-allocated": "GPU-b,NVIDIA,3000,30:;GPU-a,NVIDIA,1000,0:;"},
                ),
            ],
            "cgpu",
            "Tesla T4",
            [1000, 3000],
            id="HAMi",
        ),
        pytest.param(
            [
                node({}, {"nvidia.com/gpu": "20"}, {"hami.io/node-nvidia-register": HAMI_JSON}),
                pod("a", {"nvidia.com/gpu": 1}, {"hami.io/vgpu-devices-allocated": "GPU-b[3-0],NVIDIA,5120,0:;;"}),
            ],
            "cgpu",
            "Tesla T4",
            [0, 5120],
            id="HAMi, JSON, a MIG instance",
        ),
        pytest.param(
            [
                node({"gpushare": "true"}, {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}),
                pod("a", {"aliyun.com/gpu-mem": 3}, {"ALIYUN_COM_GPU_MEM_IDX": "1"}),
            ],
            "share",
            "",
            [0, 3072],
            id="gpushare",
        ),
        pytest.param(
            [
                node(
                    {
                        "ack.node.gpu.schedule": "cgpu",
                        "aliyun.accelerator/nvidia_count": "2",
                        "aliyun.accelerator/nvidia_mem": "15360MiB",
                        "aliyun.accelerator/nvidia_name": "Tesla-T4",
                    },
                    {"aliyun.com/gpu-mem": "30"},
                ),
                pod("a", {"aliyun.com/gpu-mem": 3}, {"scheduler.framework.gpushare.allocation": '{"0":{"0":1,"1":2}}'}),
            ],
            "cgpu",
            "Tesla-T4",
            [1024, 2048],
            id="ACK",
        ),
        *(
            pytest.param(
                [
                    node(
                        {
                            f"{prefix}/instance-gpu-{key}": value
                            for key, value in {"count": "1", "memory": "22888", "name": "a10g"}.items()
                        },
                        {"nvidia.com/gpu": "1"},
                    )
                ],
                "default",
                "a10g",
                [0],
                id=prefix,
            )
            for prefix in ("karpenter.k8s.aws", "eks.amazonaws.com")
        ),
        pytest.param(
            [
                node(
                    {
                        "cloud.google.com/gke-accelerator": "nvidia-l4",
                        "cloud.google.com/gke-max-shared-clients-per-gpu": "3",
                    },
                    {"nvidia.com/gpu": "6"},
                ),
                pod("a", WHOLE),
            ],
            "default",
            "nvidia-l4",
            [7678, 0],
            id="GKE, which tells no memory, and time-sharing",
        ),
    ],
)
def test_gpus_and_holders(
    tmp_path: Path, objects: list[dict[str, Any]], mode: str, model: str, booked: list[int]
) -> None:
    shown = summary(tmp_path, objects)
    assert (shown.mode, shown.gpus[0].model) == (mode, model)
    assert [gpu.booked_mib for gpu in shown.gpus] == booked
    assert not [each.problem for each in shown.pods if each.problem]


@pytest.mark.parametrize(
    "annotation", ["", "[", "[{}]", "a,b", "GPU-a,10,x,100,T4,0,true:", '[{"id": "a", "devmem": -1}]', "5"]
)
def test_an_annotation_that_says_nothing_is_no_gpu(annotation: str) -> None:
    foreign = node({}, {"nvidia.com/gpu": "1"}, {"hami.io/node-nvidia-register": annotation})
    given = msgspec.convert(foreign, Node)
    assert adopted_cluster([given], [], 1024).nodes == [given]


@pytest.mark.parametrize(
    ("limits", "annotations", "by"),
    [
        ({}, {"gpu-fraction": "0.5"}, "gpu-fraction"),
        ({"koordinator.sh/gpu-memory-ratio": 50}, {}, "koordinator.sh/gpu-memory-ratio"),
        (WHOLE, {"gpu-fraction": "0.5"}, ""),
    ],
)
def test_pods_that_ask_another_system_are_named(
    tmp_path: Path, limits: dict[str, Any], annotations: dict[str, str], by: str
) -> None:
    """Those that run, and those that are pending; their node is named too."""
    runs = pod("a", limits, annotations)
    waits = pod("b", limits, annotations) | {"spec": {"containers": runs["spec"]["containers"]}}
    shared = node({}, {"koordinator.sh/gpu-memory-ratio": "200"})
    output = simulated(tmp_path, [shared, runs, waits], "--mode", "cgpu").output
    assert "node n: its GPUs are not shown" in output
    said = f"pod default/a, default/b: its GPUs are not counted: it asks for them by {by}"
    assert (said in output) == bool(by)


@pytest.mark.parametrize(
    ("labels", "capacity"),
    [
        ({"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-gpu-partition-size": "1g.5gb"}, WHOLE),
        ({"karpenter.k8s.aws/instance-gpu-count": "1", "nvidia.com/gpu.product": "A100-MIG-1g.5gb"}, WHOLE),
        ({}, {"nvidia.com/GA102GL_A10": 1}),
    ],
)
def test_instances_and_devices_of_virtual_machines_are_no_gpus(
    tmp_path: Path, labels: dict[str, str], capacity: dict[str, Any]
) -> None:
    labels |= {"karpenter.k8s.aws/instance-gpu-memory": "40960"}
    result = simulated(tmp_path, [node(labels, capacity), pod("a", capacity)], "--mode", "cgpu")
    assert "node n: its GPUs are not shown" in result.output
    assert "0 of 0 GPUs are in use." in result.stdout


def test_claims_are_counted_only_where_gputile_serves_them(tmp_path: Path) -> None:
    claiming = pod("a", {})
    claiming["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    said = "pod default/a: its GPUs are not counted: it asks for them by resourceClaims"
    foreign = node(GFD, {"nvidia.com/gpu": "2"})
    assert said in simulated(tmp_path, [foreign, claiming], "--mode", "cgpu").output
    foreign["metadata"]["annotations"] = {"gputile.io/inventory": "{}"}
    assert said not in simulated(tmp_path, [foreign, claiming], "--mode", "cgpu").output


def simulated(tmp_path: Path, objects: list[dict[str, Any]], *words: str) -> Any:
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return CliRunner().invoke(app, ["simulate", "--cluster", str(dump), *words])


def test_another_mode_for_what_runs(tmp_path: Path) -> None:
    """Eight slices of two GPUs are eight shares of their part; two whole GPUs save nothing until they need less."""
    sliced = [node(SLICED, {"nvidia.com/gpu": "8"}), *(pod(name, WHOLE) for name in "abcd")]
    result = simulated(tmp_path, sliced, "--mode", "cgpu")
    assert result.exit_code == 0, result.output
    assert "Mode cgpu would leave 1 GPU free." in result.stdout
    homeless = pod("e", WHOLE) | {"spec": pod("e", WHOLE)["spec"] | {"nodeSelector": {"zone": "x"}}}
    told = simulated(tmp_path, [*sliced, homeless], "--mode", "cgpu").stdout
    assert "Mode cgpu would leave 1 GPU free, but 1 pod would have no place." in told
    whole = [node(GFD, {"nvidia.com/gpu": "2"}), pod("a", WHOLE), pod("b", WHOLE)]
    kept = simulated(tmp_path, whole, "--mode", "cgpu")
    assert (kept.exit_code, "such as --need 8GiB" in kept.stdout) == (0, True)
    needed = simulated(tmp_path, whole, "--mode", "cgpu", "--need", "4GiB", "--need", "pod/b=8GiB", "-o", "json")
    assert simulated(tmp_path, whole, "--mode", "cgpu", "--need", "pod/c=8GiB").exit_code == 2
    answer = json.loads(needed.stdout)
    assert [gpu["bookedMib"] for gpu in answer["nodes"][0]["gpus"]] == [12 * 1024, 0]
    assert [gpu["bookedMib"] for gpu in answer["before"][0]["gpus"]] == [15360, 15360]


@pytest.mark.parametrize(
    ("labels", "hami", "asked", "words", "booked"),
    [
        (GFD, "", WHOLE, (), [15, 15]),
        (GFD, "", WHOLE, ("--need", "4GiB"), [12, 0]),
        (SLICED, "", {"nvidia.com/gpu.shared": 1}, (), [9, 0]),
        ({}, HAMI, WHOLE | {"nvidia.com/gpumem": 2048}, (), [6, 0]),
        ({}, HAMI, WHOLE | {"nvidia.com/gpumem-percentage": 30}, (), [12, 0]),
    ],
)
def test_pods_that_wait_are_placed_in_the_other_mode_too(
    tmp_path: Path, labels: dict[str, str], hami: str, asked: dict[str, Any], words: tuple[str, ...], booked: list[int]
) -> None:
    """Those that are stored; those of a file stay as they are written."""
    waits = [pod(name, asked) for name in "abc"]
    for each in waits:
        del each["spec"]["nodeName"]
    full = node(labels, {"nvidia.com/gpu": "2"}, {"hami.io/node-nvidia-register": hami})
    assert simulated(tmp_path, [full, *waits], "--mode", "cgpu", *words).exit_code == 3
    for each in waits:
        each["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    answer = json.loads(simulated(tmp_path, [full, *waits], "--mode", "cgpu", *words, "-o", "json").stdout)
    assert [gpu["bookedMib"] // 1024 for gpu in answer["nodes"][0]["gpus"]] == booked


SHARED = {"nvidia.com/gpu.shared": 1}
SHARING = node(SLICED, {"nvidia.com/gpu.shared": "2"})
GPUSHARE = node({}, {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"})
WAITING = pod("w", SHARED) | {"spec": {"containers": pod("w", SHARED)["spec"]["containers"]}}


@pytest.mark.parametrize(
    ("objects", "words", "placed"),
    [
        ([SHARING, pod("a", SHARED), pod("b", SHARED), WAITING], "", 0),
        ([SHARING, SHARING | {"metadata": {"name": "m", "labels": SLICED}}, pod("a", SHARED)], "--without-node n", 1),
        ([node(SLICED, {"nvidia.com/gpu": "8"}), pod("a", {"nvidia.com/gpu": 3}), pod("b", WHOLE)], "--mode cgpu", 2),
        ([GPUSHARE, pod("a", {"aliyun.com/gpu-mem": 2})], "--mode cgpu", 1),
    ],
)
def test_pods_keep_what_the_kubelet_counts(tmp_path: Path, objects: list[Any], words: str, placed: int) -> None:
    answer = json.loads(simulated(tmp_path, objects, *words.split(), "-o", "json").stdout)
    assert len([each for each in answer["decisions"] if each["node"]]) == placed
