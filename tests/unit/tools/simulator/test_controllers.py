"""The DaemonSet controller chooses nodes by the template as it is written, not by what admission makes of its pods."""

from pathlib import Path

import pytest

from gputile.api.core import Node
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.workloads import Expansion
from tests.unit.tools.simulator.builders import expand_text, node

pytestmark = pytest.mark.requirement("B4")

OF_GPU = "containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 2}}}]"


def daemon_set(spec: str, uid: str = "") -> str:
    stored = f", uid: {uid}" if uid else ""
    template = f"template: {{metadata: {{labels: {{app: x}}}}, spec: {{{spec}}}}}"
    head = f"apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: w{stored}}}\n"
    return f"{head}spec: {{selector: {{matchLabels: {{app: x}}}}, {template}}}\n"


def gpu_node(name: str) -> Node:
    return node(name, mode="share", gpus={"count": 1, "memory": "16GiB"})


def homes(found: Expansion) -> list[str]:
    names: list[str] = []
    for pod in found.pods:
        assert pod.spec.affinity is not None
        affinity = pod.spec.affinity.node_affinity
        assert affinity is not None
        assert affinity.required is not None
        names += affinity.required.node_selector_terms[0].match_fields[0].values
    return names


def test_a_toleration_that_admission_adds_comes_too_late(tmp_path: Path) -> None:
    """The pods would be admitted with it, and none is ever made (kubernetes/kubernetes#111590)."""
    said = r"DaemonSet/w: spec\.template\.spec: the DaemonSet never makes a pod for a, b: .*as it is written"
    with pytest.raises(ManifestError, match=said):
        expand_text(tmp_path, daemon_set(OF_GPU), [gpu_node("a"), gpu_node("b")])


def test_nodes_that_it_misses_are_told(tmp_path: Path) -> None:
    found = expand_text(tmp_path, daemon_set(OF_GPU), [node("plain"), gpu_node("a")])
    assert homes(found) == ["plain"]
    assert any(
        each.text.startswith("it makes no pod for a: its controller chooses nodes by the template")
        for each in found.notes
    )


def test_a_toleration_of_the_template_counts(tmp_path: Path) -> None:
    found = expand_text(tmp_path, daemon_set(f"tolerations: [{{operator: Exists}}], {OF_GPU}"), [gpu_node("a")])
    assert (homes(found), [str(note) for note in found.notes]) == (["a"], [])
