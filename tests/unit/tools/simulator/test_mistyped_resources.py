"""Resources whose names are nearly right, and amounts that no GPU has."""

import json
from pathlib import Path

import pytest

from gputile.api.affinity import Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from gputile.api.core import Node, NodeStatus, Pod, PodSpec
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, GPU_RESOURCES, MODE_LABEL, WHOLE_GPU
from gputile.tools.simulator.described_nodes import described_nodes
from gputile.tools.simulator.fields import MistypedResources, mistyped_mode
from gputile.tools.simulator.workloads import expand
from tests.unit.tools.simulator.builders import load_text


def told(*names: str, offered: tuple[str, ...] = ()) -> list[str]:
    containers = [{"resources": {"limits": {name: 1}}} for name in names]
    node = Node(status=NodeStatus(allocatable=dict.fromkeys(offered, "1")))
    return list(MistypedResources([node]).in_spec("", {"containers": containers}))


@pytest.mark.parametrize(("name", "meant"), [("aliyun.com/gpu-memm", GPU_MEMORY), ("nvidia/gpu", WHOLE_GPU)])
def test_a_name_that_is_nearly_right_is_told(name: str, meant: str) -> None:
    (said,) = told(name)
    assert said == f'spec.containers[0].resources.limits: no node offers "{name}"; did you mean {meant}?'


def test_hamis_names_are_told_of_a_pod_that_runs() -> None:
    said = list(MistypedResources([]).among(["nvidia.com/gpumem", "nvidia.com/gpucores"]))
    assert [each.rpartition("; ")[2] for each in said] == [f"did you mean {name}?" for name in (GPU_MEMORY, GPU_CORE)]


@pytest.mark.parametrize("name", [*GPU_RESOURCES, "cpu", "hugepages-2Mi", "amd.com/gpu", "nvidia.com/mig-1g.5gb"])
def test_a_name_that_is_right_or_of_something_else_is_not(name: str) -> None:
    assert told(name) == []


@pytest.mark.parametrize(("mode", "meant"), [("cgu", "cgpu"), ("topolgy", "topology"), ("cgpu", ""), ("zebra", "")])
def test_a_mode_that_is_nearly_right_is_told(mode: str, meant: str) -> None:
    rule = NodeSelectorRequirement(key=MODE_LABEL, operator="In", values=("share", mode))
    required = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(rule,)),))
    affinity = Affinity(node_affinity=NodeAffinity(required=required))
    said = f'no node is in mode "{mode}" ({MODE_LABEL}); did you mean {meant}?' if meant else ""
    assert mistyped_mode(Pod(spec=PodSpec(node_selector={MODE_LABEL: mode}))) == said
    assert mistyped_mode(Pod(spec=PodSpec(affinity=affinity))) == said


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ([100], "100 units of 1 GiB on a GPU, and GPUs here have up to 15 GiB; did you mean units of 128 MiB"),
        ([8138], "8138 units of 1 GiB on a GPU, and GPUs here have up to 15 GiB; did you mean 8138 MiB? Then write 8"),
        ([10, 8], "its containers share a GPU and ask for 18 GiB together"),
        ([15], ""),
    ],
)
def test_an_amount_that_no_gpu_has_is_told(tmp_path: Path, amounts: list[int], said: str) -> None:
    described = (
        "apiVersion: gputile.io/v1alpha1\nkind: Cluster\nnodes: [{name: a, mode: share, gpus: {memory: 15GiB}}]\n"
    )
    (cluster,) = load_text(tmp_path, described)
    nodes = list(described_nodes(cluster))
    containers = [
        {"name": f"c{i}", "image": "i", "resources": {"limits": {GPU_MEMORY: n}}} for i, n in enumerate(amounts)
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}}
    notes = expand(load_text(tmp_path, json.dumps(pod)), nodes).notes
    assert said in " ".join(map(str, notes))
    assert bool(notes) is bool(said)
