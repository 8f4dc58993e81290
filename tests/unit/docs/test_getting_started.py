"""The first page names commands, files and options that exist, and shows what gputile prints.

tests/e2e/test_local_cluster.py executes its first part, tests/chart/test_guides.py renders the chart with its values.
"""

import re

import msgspec
import pytest
import yaml
from docs.generator.pages import DOCS

from gputile.api.core import Node
from gputile.api.workloads import DaemonSet, Deployment, RunningPod
from gputile.core.devices.inventory import Gpu, Inventory, encode_inventory
from gputile.tools.views.status import assess, table
from gputile.version import VERSION
from tests.unit.docs.named_commands import shell_commands, unknown_to_gputile

_ROOT = DOCS.parent
_PAGE = (DOCS / "guides" / "getting-started.md").read_text(encoding="utf-8")
_COMMANDS = list(shell_commands(_PAGE))


def test_each_command_of_gputile_exists_with_its_options() -> None:
    assert unknown_to_gputile(_PAGE) == []
    assert unknown_to_gputile("\n".join(_COMMANDS)) == []


def test_each_target_and_file_is_there() -> None:
    targets = {command.split()[1] for command in _COMMANDS if command.startswith("make ")}
    assert targets == {"cluster", "image"}
    assert [name for name in targets if f"\n{name}: " not in (_ROOT / "Makefile").read_text("utf-8")] == []
    files = set(re.findall(r"(?:examples|charts)/[\w./-]+", _PAGE))
    assert [file for file in files if not (_ROOT / file.rstrip(".")).exists()] == []


def test_the_first_pod_is_the_one_in_the_examples() -> None:
    shown = re.search(r"```yaml\n# examples/first-pod.yaml\n(.*?)```", _PAGE, re.DOTALL)
    assert shown
    assert yaml.safe_load(shown[1]) == yaml.safe_load((_ROOT / "examples" / "first-pod.yaml").read_text("utf-8"))


def test_the_archive_is_what_make_image_writes() -> None:
    """Its file, and the repository that the chart is told."""
    program = (_ROOT / "release" / "__main__.py").read_text("utf-8")
    repository = re.search(r'"--repository",[^)]*\bdefault="([^"\s]+)"', program)
    assert repository
    assert f"image.repository={repository[1]} " in _PAGE
    assert set(re.findall(r"dist/\S+", _PAGE)) == {f"dist/gputile-{VERSION}-x86_64.image.tar"}


@pytest.mark.requirement("U11")
@pytest.mark.parametrize("with_gpu", [False, True], ids=["kind", "gpus"])
def test_status_prints_what_the_page_shows(with_gpu: bool) -> None:
    nodes = [_node("plain", 0), *([_node("gpu-1", 4)] if with_gpu else [])]
    counts = dict.fromkeys(("controller", "scheduler", "webhook"), 2)
    workloads = [_deployment(name, count) for name, count in counts.items()]
    printed = table(assess([_agents(len(nodes)), *workloads], [_agent(node) for node in nodes], [], nodes, 128), 120)
    shown = [block.replace("\n", "").replace(" ", "") for block in re.findall(r"```text\n(.*?)```", _PAGE, re.DOTALL)]
    assert printed.replace("\n", "").replace(" ", "") == shown[with_gpu]


def _meta(component: str) -> dict[str, object]:
    return {"name": component, "labels": {"app.kubernetes.io/component": component}, "generation": 1}


def _deployment(component: str, count: int) -> Deployment:
    status = {"observedGeneration": 1, "replicas": count, "updatedReplicas": count, "availableReplicas": count}
    return msgspec.convert({"metadata": _meta(component), "spec": {"replicas": count}, "status": status}, Deployment)


def _agents(count: int) -> DaemonSet:
    status = {
        "observedGeneration": 1,
        "desiredNumberScheduled": count,
        "updatedNumberScheduled": count,
        "numberAvailable": count,
    }
    return msgspec.convert({"metadata": _meta("agent"), "status": status}, DaemonSet)


def _agent(node: Node) -> RunningPod:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    body = {"metadata": _meta("agent"), "spec": {"nodeName": node.metadata.name}, "status": ready}
    return msgspec.convert(body, RunningPod)


def _node(name: str, gpus: int) -> Node:
    cards = tuple(Gpu(index=i, uuid=f"GPU-{i}", model="NVIDIA A10", mib=23028) for i in range(gpus))
    written = encode_inventory(Inventory(gpus=cards, mode="cgpu", unit_mib=128))
    annotations = {"gputile.io/inventory": written} if gpus else {}
    return msgspec.convert({"metadata": {"name": name, "annotations": annotations}}, Node)
