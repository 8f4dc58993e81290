"""Described clusters become the nodes that an agent and a kubelet would report."""

from pathlib import Path

import msgspec
import pytest

from gputile.api.well_known import INVENTORY_ANNOTATION
from gputile.core.devices.inventory import decode_inventory, encode_inventory
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.scenario import Scenario, load_scenario
from tests.unit.tools.simulator.builders import write

HEAD = "apiVersion: gputile.io/v1alpha1\nkind: Cluster\n"
T4 = "{count: 4, model: Tesla T4, memory: 15GiB}"


def load(tmp_path: Path, nodes: str, head: str = HEAD) -> Scenario:
    return load_scenario([write(tmp_path, f"{head}nodes:\n{nodes}\n")])


def test_a_whole_node(tmp_path: Path) -> None:
    entry = (
        "- name: a\n  address: 192.0.2.1\n  mode: share\n  placement: spread\n  gpus: {count: 2, model: Tesla K80, "
        "memory: 11441MiB, unhealthy: [1]}\n  labels: {zone: x}\n  cpu: 32\n  memory: 128GiB\n  taints: []"
    )
    scenario = load(tmp_path, entry, HEAD + "gpuMemoryUnit: 128MiB\n")
    (node,) = scenario.nodes
    assert scenario.unit_mib == 128
    assert node.internal_ip == "192.0.2.1"
    assert node.spec.taints == ()
    assert node.metadata.labels == {
        "ack.node.gpu.placement": "spread",
        "ack.node.gpu.schedule": "share",
        "aliyun.accelerator/nvidia_count": "2",
        "aliyun.accelerator/nvidia_mem": "11441MiB",
        "aliyun.accelerator/nvidia_name": "Tesla-K80",
        "alpha.kubernetes.io/nvidia-gpu-name": "Tesla-K80",
        "model.gputile.io/Tesla-K80": "2",
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": "a",
        "kubernetes.io/os": "linux",
        "zone": "x",
    }
    assert node.status.allocatable == {
        "aliyun.com/gpu": "0",
        "aliyun.com/gpu-core.percentage": "0",
        "aliyun.com/gpu-count": "2",
        "aliyun.com/gpu-mem": "89",
        "cpu": 32,
        "ephemeral-storage": "1024Gi",
        "memory": "131072Mi",
        "nvidia.com/gpu": "0",
        "pods": 110,
    }
    assert node.status.capacity["aliyun.com/gpu-mem"] == "178"
    inventory = decode_inventory(node.metadata.annotations[INVENTORY_ANNOTATION])
    assert (inventory.mode, inventory.unit_mib, inventory.bandwidth) == ("share", 128, ())
    assert [(c.index, c.mib, c.model, c.healthy) for c in inventory.gpus] == [
        (0, 11441, "Tesla K80", True),
        (1, 11441, "Tesla K80", False),
    ]


def test_a_time_sliced_node_offers_each_gpu_several_times(tmp_path: Path) -> None:
    labels = "{gputile.io/sharing: time-slicing, gputile.io/replicas: '4'}"
    entry = f"- {{name: 'n', gpus: {{count: 2, memory: 15GiB, unhealthy: [1]}}, labels: {labels}, taints: []}}"
    scenario = load(tmp_path, entry)
    (node,) = scenario.nodes
    assert (node.status.capacity["nvidia.com/gpu"], node.status.allocatable["nvidia.com/gpu"]) == ("8", "4")
    assert decode_inventory(node.metadata.annotations[INVENTORY_ANNOTATION]).replicas == 4


@pytest.mark.parametrize(("mode", "units"), [("share", "14"), ("default", "0")])
def test_a_part_of_a_gpus_memory_is_kept_back_where_memory_is_shared(tmp_path: Path, mode: str, units: str) -> None:
    described = "gpus: {memory: 15GiB}, labels: {gputile.io/shared-memory: 14848MiB}"
    (node,) = load(tmp_path, f"- {{name: a, mode: {mode}, {described}}}").nodes
    assert node.status.allocatable["aliyun.com/gpu-mem"] == units


def test_mixed_gpus_have_no_label_that_is_true_of_some(tmp_path: Path) -> None:
    gpus = "[{count: 2, model: NVIDIA A10, memory: 23028MiB, bandwidth: nvlink}, {model: NVIDIA L4, memory: 23034MiB}]"
    (node,) = load(tmp_path, f"- {{name: a, mode: topology, gpus: {gpus}}}").nodes
    accelerator = {k: v for k, v in node.metadata.labels.items() if "nvidia" in k}
    assert accelerator == {"aliyun.accelerator/nvidia_count": "3"}
    inventory = decode_inventory(node.metadata.annotations[INVENTORY_ANNOTATION])
    assert inventory.bandwidth == ((0, 300, 32), (300, 0, 32), (32, 32, 0))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "{name: a, mode: fast}",
            r'document 1: Cluster/\(no name\): nodes\[0\].mode: Unsupported value: "fast": supported values: ',
        ),
        ("{name: A}", r'nodes\[0\].name: Invalid value: "A": must be'),
        ("{name: a, gpus: [{count: 64, memory: 1GiB}, {count: 1, memory: 1GiB}]}", "a node has at most 64 GPUs"),
        ("{name: a, gpus: {memory: 15}}", "gpus.memory: the number 15 is not a memory size such as 128MiB"),
        ("{name: a, gpus: {memory: 0GiB}}", r"nodes\[0\].gpus.memory: 0GiB is not between 1MiB and 16777216MiB"),
        ("{name: a, gpus: {memory: 1GiB, unhealthy: [1]}}", "gpus.unhealthy: the group's GPUs are 0 to 0"),
        (
            "{name: a, gpus: {memory: 1GiB, count: 2, bandwidth: [[0, 1]]}}",
            "a matrix for 2 GPUs has 2 rows of 2 numbers",
        ),
        ("{name: a, gpus: {memory: 1GiB, count: 2, bandwidth: [[0, 1], [2, 0]]}}", "GPU 1 and GPU 0 is 2.0 one way"),
        ("{name: a, cpu: lots}", r"nodes\[0\].cpu: 'lots' is not a quantity"),
        ("{name: a, resources: {x.io/y: z}}", r"nodes\[0\].resources\[\"x.io/y\"\]: 'z' is not a quantity"),
        (
            "{name: a, taints: [{key: k, effect: Never}]}",
            r'nodes\[0\].taints\[0\].effect: Unsupported value: "Never": supported values: ',
        ),
        ("{name: a, labels: {gputile.io/sharing: time-slicing}}", r'gputile.io/replicas"\]: must be 2 to 64, is \'\''),
        (
            "{name: a, mode: share, labels: {gputile.io/sharing: time-slicing, gputile.io/replicas: '2'}}",
            "time-slicing is valid in mode default only, not in share",
        ),
        ("{name: a, mode: share, labels: {ack.node.gpu.schedule: cgpu}}", "'cgpu' contradicts mode share"),
        ("{name: a}\n- {name: a}", "there are two nodes with the name a"),
    ],
)
def test_refused(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        load(tmp_path, f"- {entry}")


@pytest.mark.requirement("U1", "U2")
def test_nodes_described_without_a_unit_count_in_that_of_the_cluster(tmp_path: Path) -> None:
    """The configuration's, or that of another file; two that are named have to agree."""
    short = write(tmp_path, f"{HEAD}nodes: [{{name: a, mode: share, gpus: {T4}}}]", "short.yaml")
    named = write(tmp_path, f"{HEAD}gpuMemoryUnit: 128MiB\nnodes: [{{name: b, mode: share, gpus: {T4}}}]", "named.yaml")
    for files, configured_mib, units in (
        ([short], None, ["60"]),
        ([short], 128, ["480"]),
        ([short, named], None, ["480", "480"]),
        ([short, named], 128, ["480", "480"]),
    ):
        scenario = load_scenario(files, configured_mib=configured_mib)
        assert [node.status.allocatable["aliyun.com/gpu-mem"] for node in scenario.nodes] == units
    with pytest.raises(ManifestError, match="gpuMemoryUnit: it is 128 MiB, and the configuration has 1024 MiB"):
        load_scenario([named], configured_mib=1024)


def test_nodes_as_kubectl_prints_them(tmp_path: Path) -> None:
    (described,) = load(tmp_path, f"- {{name: 'n', address: 192.0.2.1, mode: share, gpus: {T4}}}").nodes
    item = {"apiVersion": "v1", "kind": "Node", **msgspec.to_builtins(described)}
    item["status"]["images"] = [{"names": ["x"]}]
    printed = msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": [item]})
    assert load_scenario([write(tmp_path, printed)]).nodes == [described]
    annotations = described.metadata.annotations
    assert encode_inventory(decode_inventory(annotations[INVENTORY_ANNOTATION])) == annotations[INVENTORY_ANNOTATION]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apiVersion: v1\nkind: Node\nmetadata: {}", r"Node/\(no name\): metadata.name: Invalid value: .*: must be"),
        (
            "apiVersion: gputile.io/v2\nkind: Cluster\nnodes: []",
            "'gputile.io/v2' is unknown; use gputile.io/v1alpha1",
        ),
        (
            "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nstatus: {allocatable: {cpu: many}}",
            r"Node/a: status.allocatable\[\"cpu\"\]: 'many' is not a quantity",
        ),
    ],
)
def test_what_is_no_cluster(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        load_scenario([write(tmp_path, text)])
