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
from gputile.cli.commands.documents import script
from gputile.tools.nodepool.clouds import advertised, node_labels, setup_for
from gputile.tools.nodepool.pool import WAYS, DescriptionError, NodePool, load_nodepool

pytestmark = pytest.mark.requirement("G6", "G7", "M11", "U8")

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
        ({"gpuMemoryUnit": "32GiB"}, "gpus.memory is 23028MiB: a GPU must have at least one unit of 32GiB"),
        ({"gpus": {"memory": "24 GB"}}, "gpus.memory: '24 GB' is not a memory size"),
        ({"minNodes": 9}, "minNodes is 9, more than maxNodes, 4"),
        ({"location": ""}, "location is missing: eks needs it"),
        ({"resourceGroup": "rg"}, "resourceGroup has no meaning for eks: remove it"),
        ({"provider": "ovh"}, "provider"),
        ({"name": "pool\n"}, "name"),
    ],
)
def test_a_wrong_description_names_field_rule_and_values(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError) as refused:
        load_nodepool(described("eks", "accelerated-image") | changes)
    assert message in str(refused.value)


GPU = {"count": 4, "memory": "23028MiB", "model": "NVIDIA A10G"}


@pytest.mark.requirement("U8")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mode": "topology", "labels": {"ack.node.gpu.schedule": "cgpu"}},
            "labels: ack.node.gpu.schedule is 'cgpu', which contradicts the other fields ('topology'): remove",
        ),
        ({"labels": {"ack.node.gpu.placement": "binpack"}}, "which contradicts the other fields ('spread')"),
        (
            {"labels": {"alpha.kubernetes.io/nvidia-gpu-name": "Tesla-T4"}},
            "which contradicts the other fields",
        ),
        (
            {"labels": {"node-role.kubernetes.io/gpu": ""}},
            "a kubelet refuses unknown labels of kubernetes.io and k8s.io",
        ),
        (
            {"gpus": GPU | {"memory": "999999999999TiB"}},
            "gpus.memory is 999999999999TiB: the most that a GPU may have",
        ),
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
    }
    assert node_labels(pool(labels=labels)).items() >= labels.items()


def test_what_one_provider_cannot_do_is_said() -> None:
    with pytest.raises(DescriptionError, match="AKS allows at most 12 letters and digits"):
        pool("aks", "own-plugin", name="gpu-pool")
    with pytest.raises(DescriptionError, match="karpenter is written for eks only"):
        pool("gke", "own-driver", autoscaler="karpenter")
    with pytest.raises(DescriptionError, match="serves whole GPUs only; use way own-driver"):
        pool("gke", "managed-driver", mode="cgpu")
    assert "GKE's autoscaler takes no hints for aliyun.com/gpu-mem" in " ".join(
        setup_for(pool("gke", "own-driver")).notes
    )
    assert setup_for(pool("gke", "own-driver", minNodes=1)).notes[1:] == setup_for(pool("gke", "own-driver")).notes[2:]


def test_fields_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(described("eks", "accelerated-image")))
    fields = ["mode=share", "gpuMemoryUnit=1GiB", "gpus.count=1", "name=other", "maxNodes=9"]
    options = [word for field in fields for word in ("--set", field)]
    result = run.invoke(app, ["nodepool", "-f", str(tmp_path / "pool.yaml"), *options])
    assert result.exit_code == 0, result.output
    assert "resources/aliyun.com/gpu-mem,Value=22," in result.stdout
    assert "maxSize: 9" in result.stdout


def test_the_description_may_come_from_the_standard_input_which_errors_name(tmp_path: Path) -> None:
    path, text = tmp_path / "pool.yaml", yaml.safe_dump(described("gke", "own-driver"))
    path.write_text(text)
    piped = run.invoke(app, ["nodepool", "-f", "-"], input=text)
    assert piped.exit_code == 0, piped.stderr
    assert piped.stdout == run.invoke(app, ["nodepool", "-f", str(path)]).stdout
    wrong = run.invoke(app, ["nodepool", "-f", "-"], input=text + "mod: x\n")
    assert (wrong.exit_code, wrong.stderr) == (2, "error: standard input: mod: unknown field; did you mean mode?\n")


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
