"""``gputile nodepool``: each provider in each way of the documents, to the character.

``GPUTILE_GOLDEN=write`` writes the golden files anew; read the difference before it is kept.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, MODES, TOPOLOGY_GPU, WHOLE_GPU
from gputile.cli.app import app
from gputile.cli.commands.nodepool import script
from gputile.tools.nodepool.description import DescriptionError, load_nodepool
from gputile.tools.nodepool.hints import advertised, node_labels
from gputile.tools.nodepool.pool import WAYS, NodePool
from gputile.tools.nodepool.providers import setup_for
from gputile.tools.nodepool.setup import File

pytestmark = pytest.mark.requirement("G6", "U8")

GOLDEN = Path(__file__).parent / "golden"
run = CliRunner()

COMMON: dict[str, Any] = {
    "name": "gpu",
    "cluster": "research",
    "mode": "cgpu",
    "placement": "spread",
    "gpuMemoryUnit": "128MiB",
    "maxNodes": 4,
}
SPECIFIC: dict[str, dict[str, Any]] = {
    "eks": {
        "location": "eu-west-1",
        "instanceType": "g5.12xlarge",
        "gpus": {"count": 4, "memory": "23028MiB", "model": "NVIDIA A10G"},
    },
    "aks": {
        "resourceGroup": "research-rg",
        "instanceType": "Standard_NC16as_T4_v3",
        "gpus": {"count": 1, "memory": "15360MiB", "model": "Tesla T4"},
    },
    "gke": {
        "location": "europe-west4",
        "instanceType": "g2-standard-24",
        "accelerator": "nvidia-l4",
        "gpus": {"count": 2, "memory": "23034MiB"},
    },
}


def described(provider: str, way: str, **changes: Any) -> dict[str, Any]:
    own = {"mode": "default", "placement": "binpack"} if way == "managed-driver" else {}
    return {"provider": provider, "way": way, **COMMON, **SPECIFIC[provider], **own, **changes}


def pool(provider: str = "eks", way: str = "accelerated-image", **changes: Any) -> NodePool:
    return load_nodepool(described(provider, way, **changes))


CASES = {f"{provider}-{way}": described(provider, way) for provider, ways in WAYS.items() for way in ways} | {
    "eks-karpenter": described("eks", "accelerated-image", autoscaler="karpenter"),
    "eks-karpenter-whole": described("eks", "gpu-operator", autoscaler="karpenter", mode="default", minNodes=1),
    "eks-core-mem": described("eks", "accelerated-image", mode="core_mem"),
    "aks-one-node": described("aks", "own-plugin", minNodes=1, mode="topology", placement=None),
}


@pytest.mark.parametrize("name", CASES)
def test_every_way_is_what_it_was(name: str) -> None:
    text = script(setup_for(load_nodepool(CASES[name])))
    golden = GOLDEN / f"{name}.sh"
    if os.environ.get("GPUTILE_GOLDEN") == "write":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.glob("*.sh")} == CASES.keys()


@pytest.mark.requirement("G7", "M11")
@pytest.mark.parametrize("name", CASES)
def test_nodes_are_tainted_and_join_in_their_mode(name: str) -> None:
    """A plain pod is kept off, and the mode needs no manual step."""
    text = script(setup_for(load_nodepool(CASES[name])))
    tainted = "nvidia.com/gpu=present:NoSchedule" in text or "key: nvidia.com/gpu\n" in text
    assert tainted
    assert f"ack.node.gpu.schedule{'=' if 'cat >' not in text else ': '}{CASES[name]['mode']}" in text


@pytest.mark.requirement("G6")
@pytest.mark.parametrize("name", [name for name in CASES if not name.endswith(("managed-driver", "gpu-image"))])
def test_nothing_is_advertised_twice(name: str) -> None:
    """The provider's own device plugin stays off, and so does the GPU Operator's."""
    text, provider = script(setup_for(load_nodepool(CASES[name]))), name.partition("-")[0]
    if "gpu-operator" in text:
        assert "devicePlugin.enabled=false" in text
        opened = "kubectl label namespace gpu-operator gputile.io/unsafe-gpu-access=allowed"
        assert 0 < text.index(opened) < text.index("helm install"), "its pods are refused before that"
    if "eksctl create" in text:
        assert "--install-nvidia-plugin=false" in text
    if provider == "gke":
        assert "gke-no-default-nvidia-gpu-device-plugin=true" in text


@pytest.mark.requirement("U8")
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("default", {WHOLE_GPU: 4}),
        ("topology", {TOPOLOGY_GPU: 4}),
        ("share", {GPU_MEMORY: 4 * (23028 // 128)}),
        ("core_mem", {GPU_MEMORY: 4 * (23028 // 128), GPU_CORE: 400}),
    ],
)
def test_the_autoscaler_is_told_what_the_agent_will_advertise(mode: str, expected: dict[str, int]) -> None:
    """At every unit, from zero nodes too."""
    assert advertised(pool(mode=mode)) == expected
    text = script(setup_for(pool(mode=mode)))
    for name, count in expected.items():
        assert f"Key=k8s.io/cluster-autoscaler/node-template/resources/{name},Value={count}," in text


def test_karpenter_learns_it_by_a_node_overlay() -> None:
    (file,) = [s for s in setup_for(pool(autoscaler="karpenter")).steps if isinstance(s, File)]
    node_pool, overlay = file.documents
    assert (overlay["kind"], overlay["spec"]["capacity"]) == ("NodeOverlay", {GPU_MEMORY: "716"})
    assert node_pool["spec"]["template"]["metadata"]["labels"]["ack.node.gpu.schedule"] == "cgpu"


def test_a_kubelet_takes_every_label() -> None:
    """A kubelet refuses to start with labels of kubernetes.io that it does not know."""
    for case in CASES.values():
        assert not [key for key in node_labels(load_nodepool(case)) if "kubernetes.io/" in key]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"way": "own-driver"},
            'way: for eks: Unsupported value: "own-driver": supported values: "accelerated-image", "gpu-operator"',
        ),
        (
            {"mode": "shared"},
            'mode: Unsupported value: "shared": supported values: "default", "cgpu", "core_mem", "share"',
        ),
        ({"gpuMemoryUnit": "32MiB"}, "the smallest valid unit is 64MiB"),
        ({"gpuMemoryUnit": "32GiB"}, "gpus.memory is 23028MiB: a GPU holds not one unit of 32GiB"),
        ({"gpus": {"memory": "24 GB"}}, "gpus.memory: '24 GB' is not a memory size"),
        ({"minNodes": 9}, "minNodes is 9, more than maxNodes, 4"),
        ({"location": ""}, "location is missing: eks needs it"),
        ({"resourceGroup": "rg"}, "resourceGroup means nothing for eks: leave it out"),
        ({"accelerator": "nvidia-l4"}, "accelerator means nothing for eks: leave it out"),
        ({"provider": "ovh"}, "provider"),
        ({"size": 3}, "size"),
        ({"name": "-x"}, "name"),
        ({"name": "pool\n"}, "name"),
    ],
)
def test_a_wrong_description_names_field_rule_and_values(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError) as refused:
        load_nodepool(described("eks", "accelerated-image") | changes)
    assert message in str(refused.value)


GPU = {"count": 4, "memory": "23028MiB", "model": "NVIDIA A10G"}
KARPENTER_LABEL = {"karpenter.sh/nodepool": "gpu"}


@pytest.mark.requirement("U8")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mode": "topology", "labels": {"ack.node.gpu.schedule": "cgpu"}},
            "labels: ack.node.gpu.schedule is 'cgpu', but by mode the nodes have 'topology': leave it out here, or "
            "change mode",
        ),
        ({"labels": {"ack.node.gpu.placement": "binpack"}}, "but by placement the nodes have 'spread'"),
        ({"labels": {"aliyun.accelerator/nvidia_count": "8"}}, "but by gpus.count the nodes have '4'"),
        ({"labels": {"aliyun.accelerator/nvidia_mem": "1MiB"}}, "but by gpus.memory the nodes have '23028MiB'"),
        ({"labels": {"alpha.kubernetes.io/nvidia-gpu-name": "Tesla-T4"}}, "but by gpus.model the nodes have"),
        ({"labels": {"eks.amazonaws.com/nodegroup": "other"}}, "but by name the nodes have 'gpu'"),
        ({"labels": {"node.kubernetes.io/instance-type": "g5.xlarge"}}, "but by instanceType the nodes have"),
        ({"labels": KARPENTER_LABEL}, "karpenter.sh/nodepool is 'gpu', but by name no node of this pool has it"),
        (
            {"labels": {"node-role.kubernetes.io/gpu": ""}},
            "a kubelet takes no label of kubernetes.io or k8s.io that it",
        ),
        ({"labels": {"bad key!": "v"}}, "labels: 'bad key!': the name of a label is up to 63 letters, digits,"),
        ({"labels": {"": "v"}}, "labels: '': the name of a label is"),
        ({"labels": {"a" * 64: "v"}}, "the name of a label is up to 63"),
        ({"labels": {"Example.com/team": "v"}}, "before '/' stands a DNS name in lower case, such as example.com"),
        ({"labels": {"a/b/c": "v"}}, "before '/' stands a DNS name"),
        ({"labels": {"/team": "v"}}, "before '/' stands a DNS name"),
        ({"labels": {"team": "v al"}}, "labels: team is 'v al': the value of a label is empty, or up to 63 letters"),
        ({"labels": {"team": "-v"}}, "with a letter or digit at both ends"),
        ({"labels": {"team": "v\n"}}, "the value of a label is"),
        (
            {"gpus": GPU | {"memory": "999999999999TiB"}},
            "gpus.memory is 999999999999TiB: the most that a GPU may have",
        ),
        ({"gpus": GPU | {"memory": "17TiB"}}, "the most that a GPU may have is 16777216MiB"),
    ],
)
def test_labels_and_sizes_that_no_node_has_are_refused_with_the_remedy(changes: dict[str, Any], message: str) -> None:
    """A label that contradicts the description is a wrong hint, and one that is none keeps nodes from joining."""
    with pytest.raises(DescriptionError) as refused:
        pool(**changes)
    assert message in str(refused.value)


def test_labels_of_ones_own_are_taken() -> None:
    """A word that says the same again does no harm."""
    labels = {
        "team": "vision",
        "example.com/cost-centre": "4711",
        "empty": "",
        "node.kubernetes.io/lifecycle": "spot",
        "ack.node.gpu.schedule": "cgpu",
        "kubernetes.io/arch": "amd64",
    }
    assert node_labels(pool(labels=labels)).items() >= labels.items()
    with pytest.raises(DescriptionError, match="but by way no node of this pool has it"):
        pool("gke", "managed-driver", labels={"gke-no-default-nvidia-gpu-device-plugin": "true"})
    assert pool("gke", "own-driver", labels={"gke-no-default-nvidia-gpu-device-plugin": "true"})


def test_what_one_provider_cannot_do_is_said() -> None:
    with pytest.raises(DescriptionError, match="AKS takes at most 12 letters and digits"):
        pool("aks", "own-plugin", name="gpu-pool")
    with pytest.raises(DescriptionError, match="karpenter is written for eks only"):
        pool("gke", "own-driver", autoscaler="karpenter")
    with pytest.raises(DescriptionError, match="serves whole GPUs only; use way own-driver"):
        pool("gke", "managed-driver", mode="cgpu")
    assert "GKE's autoscaler has no hint for aliyun.com/gpu-mem" in " ".join(setup_for(pool("gke", "own-driver")).notes)
    assert setup_for(pool("gke", "own-driver", minNodes=1)).notes[1:] == setup_for(pool("gke", "own-driver")).notes[2:]
    assert "Azure has retired the GPU image" in setup_for(pool("aks", "gpu-image")).notes[0]


POD = """
apiVersion: v1
kind: Pod
metadata: {{name: wants, namespace: research}}
spec: {{containers: [{{name: c, image: x, resources: {{limits: {{aliyun.com/gpu-mem: {units}}}}}}}]}}
"""


@pytest.mark.requirement("U8")
def test_a_pod_that_the_pool_can_never_hold_is_named(tmp_path: Path) -> None:
    """179 units fit one GPU of 23028 MiB; 180 fit the node and no GPU, and would bring a node in vain."""
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(described("eks", "accelerated-image")))
    for units, code in ((179, 0), (180, 3)):
        (tmp_path / "pod.yaml").write_text(POD.format(units=units))
        arguments = ["nodepool", "-f", str(tmp_path / "pool.yaml"), "--pod", str(tmp_path / "pod.yaml")]
        result = run.invoke(app, arguments)
        assert result.exit_code == code, result.output
        assert ("research/wants can never run on this pool" in result.stderr) == bool(code)
        assert result.stdout.startswith("#!/bin/sh")


def test_a_field_of_few_values_names_them() -> None:
    for field, valid in (
        ("provider", "aks, eks, gke"),
        ("placement", "binpack, packing, spread"),
        ("kind", "NodePool"),
    ):
        quoted = ", ".join(f'"{each}"' for each in valid.split(", "))
        with pytest.raises(DescriptionError, match=f'^{field}: Unsupported value: "azure": supported values: {quoted}'):
            load_nodepool(described("eks", "accelerated-image") | {field: "azure"})


NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: 'n'}\n"
JOB = "apiVersion: v1\nkind: Job\nmetadata: {name: wants}\n"
MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: wants}\n"
PLACED = "apiVersion: v1\nkind: Pod\nmetadata: {name: wants, uid: u}\nspec: {nodeName: 'n', containers: [{name: c}]}\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (JOB, 'no matches for kind "Job" in version "v1"; Job is in batch/v1'),
        (MAP, "no file has a pod to be placed"),
        ("", "it holds no object"),
        (PLACED, "no file has a pod to be placed"),
    ],
)
def test_pods_that_nobody_judged_do_not_pass_as_fitting(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(described("eks", "accelerated-image")))
    (tmp_path / "pod.yaml").write_text(text)
    result = run.invoke(app, ["nodepool", "-f", str(tmp_path / "pool.yaml"), "--pod", str(tmp_path / "pod.yaml")])
    assert result.exit_code == 2, result.output
    assert why in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(("units", "code"), [(179, 0), (180, 3)])
def test_a_node_beside_the_pods_makes_no_room(tmp_path: Path, units: int, code: int) -> None:
    """The pods are judged on an empty node of the pool alone."""
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(described("eks", "accelerated-image")))
    (tmp_path / "pod.yaml").write_text(POD.format(units=units) + "---\n" + NODE)
    result = run.invoke(app, ["nodepool", "-f", str(tmp_path / "pool.yaml"), "--pod", str(tmp_path / "pod.yaml")])
    assert result.exit_code == code, result.output
    assert "Node/n: it makes no room" in result.stderr


@pytest.mark.requirement("U8")
def test_a_scheduling_gate_is_nothing_that_the_pool_lacks(tmp_path: Path) -> None:
    """What waits for somebody else's leave now runs there later."""
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(described("eks", "accelerated-image")))
    pod = yaml.safe_load(POD.format(units=179))
    pod["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    result = run.invoke(app, ["nodepool", "-f", str(tmp_path / "pool.yaml"), "--pod", str(tmp_path / "pod.yaml")])
    assert result.exit_code == 0, result.output


def never(tmp_path: Path, described_pool: dict[str, Any], spec: dict[str, Any]) -> str:
    """Return what `gputile nodepool --pod` says of a pod with `spec`, "" where it may run on the pool."""
    container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "wants"},
        "spec": {"containers": [container], **spec},
    }
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(described_pool))
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    result = run.invoke(app, ["nodepool", "-f", str(tmp_path / "pool.yaml"), "--pod", str(tmp_path / "pod.yaml")])
    assert result.exit_code in (0, 3), result.output
    assert ("can never run on this pool" in result.stderr) == (result.exit_code == 3)
    return result.stderr


EKS = described("eks", "accelerated-image", mode="default")
KARPENTER = EKS | {"autoscaler": "karpenter"}
AKS = described("aks", "own-plugin", mode="default")
GKE = described("gke", "own-driver", mode="default", location="us-central1-a")
UNNAMED = EKS | {"gpus": {"count": 4, "memory": "23028MiB"}}


@pytest.mark.requirement("U8")
@pytest.mark.parametrize(
    ("pool_described", "labels"),
    [
        (EKS, {"node.kubernetes.io/instance-type": "g5.12xlarge", "kubernetes.io/os": "linux"}),
        (EKS, {"eks.amazonaws.com/nodegroup": "gpu", "alpha.eksctl.io/nodegroup-name": "gpu"}),
        (EKS, {"topology.kubernetes.io/region": "eu-west-1", "topology.kubernetes.io/zone": "eu-west-1b"}),
        (EKS, {"eks.amazonaws.com/capacityType": "ON_DEMAND", "nvidia.com/gpu.product": "NVIDIA-A10G"}),
        (EKS, {"model.gputile.io/NVIDIA-A10G": "4", "aliyun.accelerator/nvidia_mem": "23028MiB"}),
        (KARPENTER, {"karpenter.sh/nodepool": "gpu", "karpenter.k8s.aws/instance-family": "g5"}),
        (AKS, {"agentpool": "gpu", "kubernetes.azure.com/agentpool": "gpu", "accelerator": "nvidia"}),
        (
            AKS,
            {"node.kubernetes.io/instance-type": "Standard_NC16as_T4_v3", "kubernetes.azure.com/accelerator": "nvidia"},
        ),
        (AKS, {"topology.kubernetes.io/zone": "westeurope-1", "topology.kubernetes.io/region": "westeurope"}),
        (GKE, {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-nodepool": "gpu"}),
        (GKE, {"node.kubernetes.io/instance-type": "g2-standard-24", "kubernetes.io/arch": "amd64"}),
        (GKE, {"topology.kubernetes.io/zone": "us-central1-a", "topology.kubernetes.io/region": "us-central1"}),
        (UNNAMED, {"aliyun.accelerator/nvidia_name": "NVIDIA-A10G", "aliyun.accelerator/nvidia_count": "4"}),
        (EKS | {"labels": {"team": "vision"}}, {"team": "vision"}),
    ],
)
def test_a_label_that_a_node_of_the_pool_has_or_may_have_keeps_no_pod_off(
    tmp_path: Path, pool_described: dict[str, Any], labels: dict[str, str]
) -> None:
    """Only what no such node could take is said to have no place; what the description does not tell may be."""
    assert never(tmp_path, pool_described, {"nodeSelector": labels}) == ""


@pytest.mark.requirement("U8")
@pytest.mark.parametrize(
    ("pool_described", "labels"),
    [
        (EKS, {"node.kubernetes.io/instance-type": "g5.xlarge"}),
        (EKS, {"karpenter.sh/nodepool": "gpu"}),
        (EKS, {"topology.kubernetes.io/region": "us-east-1"}),
        (EKS, {"aliyun.accelerator/nvidia_name": "Tesla-T4"}),
        (EKS, {"node-role.kubernetes.io/control-plane": ""}),
        (EKS, {"kubernetes.io/hostname": "ip-10-0-0-1"}),
        (EKS, {"team": "vision"}),
        (EKS | {"labels": {"team": "vision"}}, {"team": "audio"}),
        (KARPENTER, {"eks.amazonaws.com/nodegroup": "gpu"}),
        (AKS, {"kubernetes.azure.com/agentpool": "other"}),
        (GKE, {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}),
        (GKE, {"topology.kubernetes.io/zone": "us-central10-a"}),
        (UNNAMED, {"aliyun.accelerator/nvidia_count": "8"}),
    ],
)
def test_a_label_that_no_node_of_the_pool_has_keeps_a_pod_off(
    tmp_path: Path, pool_described: dict[str, Any], labels: dict[str, str]
) -> None:
    """Such a pod would bring a node in vain."""
    text = never(tmp_path, pool_described, {"nodeSelector": labels | {"kubernetes.io/arch": "amd64"}})
    assert "default/wants can never run on this pool" in text


def affinity(*terms: list[tuple[str, str, list[str]]]) -> dict[str, Any]:
    written = [{"matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in term]} for term in terms]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": written}}}
    }


@pytest.mark.requirement("U8")
@pytest.mark.parametrize(
    ("spec", "may_run"),
    [
        (affinity([("kubernetes.io/arch", "In", ["amd64"]), ("kubernetes.io/os", "In", ["linux"])]), True),
        (affinity([("topology.kubernetes.io/zone", "In", ["us-east1-b", "us-central1-c"])]), True),
        (affinity([("topology.kubernetes.io/zone", "In", ["us-east1-b"])]), False),
        (affinity([("topology.kubernetes.io/zone", "NotIn", ["us-central1-a"])]), True),
        (affinity([("cloud.google.com/gke-spot", "Exists", [])]), True),
        (affinity([("kubernetes.io/arch", "Exists", []), ("team", "Exists", [])]), False),
        (affinity([("team", "Exists", [])], [("kubernetes.io/arch", "In", ["arm64"])]), True),
        (affinity([("cloud.google.com/gke-nodepool", "NotIn", ["gpu"])]), False),
        (affinity([("team", "DoesNotExist", [])]), True),
        (affinity([]), False),
        (
            {
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "topology.kubernetes.io/zone",
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": {"app": "a"}},
                    }
                ]
            },
            True,
        ),
        (
            {
                "affinity": {
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {
                                "topologyKey": "topology.kubernetes.io/zone",
                                "labelSelector": {"matchLabels": {"app": "database"}},
                            }
                        ]
                    }
                }
            },
            True,
        ),
    ],
)
def test_affinity_is_judged_as_far_as_the_description_goes(tmp_path: Path, spec: dict[str, Any], may_run: bool) -> None:
    """One term that may hold is enough, and what else runs is not described."""
    assert (never(tmp_path, GKE, spec) == "") is may_run


def test_options_go_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(described("eks", "accelerated-image")))
    options = ["--mode", "share", "--unit", "1GiB", "--gpus", "1", "--name", "other", "--max-nodes", "9"]
    result = run.invoke(app, ["nodepool", "-f", str(tmp_path / "pool.yaml"), *options])
    assert result.exit_code == 0, result.output
    assert "resources/aliyun.com/gpu-mem,Value=22," in result.stdout
    assert "maxSize: 9" in result.stdout


@pytest.mark.parametrize(
    "text",
    ["[", "[]", "way: x", b"\xff"],
    ids=range(4),
)
def test_a_file_that_is_no_description_is_an_error(tmp_path: Path, text: str | bytes) -> None:
    (tmp_path / "pool.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert run.invoke(app, ["nodepool", "-f", str(tmp_path / "pool.yaml")]).exit_code == 2
    assert run.invoke(app, ["nodepool", "-f", str(tmp_path / "none.yaml")]).exit_code == 2


@given(
    st.sampled_from([(p, w) for p, ways in WAYS.items() for w in ways]),
    st.sampled_from(MODES),
    st.integers(64, 4096),
    st.integers(1, 16),
    st.text(min_size=1, max_size=20),
)
def test_any_valid_description_becomes_a_script_that_a_shell_can_read(
    place: tuple[str, str], mode: str, unit: int, gpus: int, cluster: str
) -> None:
    group = {"count": gpus, "memory": "23028MiB"}
    description = described(*place, mode=mode, gpuMemoryUnit=f"{unit}MiB", gpus=group, cluster=cluster)
    try:
        found = load_nodepool(description)
    except DescriptionError:
        assert place[1] == "managed-driver"
        return
    text = script(setup_for(found))
    if "\x00" not in text and "\r" not in text:
        subprocess.run(["sh", "-n"], input=text.encode(errors="replace"), check=True)
