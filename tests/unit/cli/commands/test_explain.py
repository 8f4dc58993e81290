"""``gputile explain POD``: each answer, its exit code, and input that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.cli.app import app
from gputile.tools.simulator.manifests import make_gpu_uuid
from tests.fakes.corebuilders import allocation_text, share

pytestmark = pytest.mark.requirement("B4")

run = CliRunner()
CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes:
- {name: a, mode: cgpu, gpus: {count: 2, model: T4, memory: 15GiB}}
- {name: b, mode: core_mem, gpus: {count: 1, model: T4, memory: 15GiB}}
"""


def pod(name: str, units: int, more: str = "", spec: str = "", annotations: str = "{}") -> str:
    return f"""---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: team, uid: {name}, annotations: {annotations}}}
spec:
  {spec}
  tolerations: [{{key: nvidia.com/gpu, operator: Exists}}]
  containers: [{{name: main, image: i, resources: {{limits: {{aliyun.com/gpu-mem: {units}{more}}}}}}}]
"""


@pytest.fixture
def state(tmp_path: Path) -> str:
    uuid = make_gpu_uuid("a", 0)
    held = json.dumps({ALLOCATION_ANNOTATION: allocation_text(share(uuid, 8 * 1024))})
    file = tmp_path / "state.yaml"
    file.write_text(
        CLUSTER
        + pod("old", 8, spec="nodeName: a", annotations=held)
        + pod("lost", 8, spec="nodeName: b")
        + pod("fits", 7)
        + pod("waits", 16)
        + pod("wrong", 2, more=", aliyun.com/gpu-core.percentage: 7")
        + pod("gated", 1, spec="schedulingGates: [{name: example.com/quota}]"),
        encoding="utf-8",
    )
    return str(file)


def explained(state: str, *arguments: str, code: int = 0) -> str:
    result = run.invoke(app, ["explain", "--cluster", state, *arguments])
    assert result.exit_code == code, result.output
    return result.stderr if code == 2 else result.stdout


def test_pending_by_node_gpu_and_rule_and_what_would_help(state: str) -> None:
    text = explained(state, "team/waits", code=3)
    assert "Pod team/waits asks for 16 GiB on one GPU." in text
    assert "It fits none of 2 node(s)" in text
    assert "pod team/lost is on unknown GPUs" in text
    assert "has 15 GiB; the pod needs 16 GiB on one GPU" in text
    assert "It would fit if" in text


def test_the_namespace_by_option_and_json_for_scripts(state: str) -> None:
    answer: Any = json.loads(explained(state, "waits", "-n", "team", "-o", "json", code=3))
    assert (answer["namespace"], answer["pod"], answer["state"], answer["node"]) == ("team", "waits", "Pending", None)
    assert {node["name"]: node["fits"] for node in answer["nodes"]} == {"a": False, "b": False}
    assert answer["changes"][0]["change"] == "pod team/waits asks for no more than 15 GiB (aliyun.com/gpu-mem: 15)"


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("old", 0, "is on node a: GPU 0 (GPU-"),
        ("lost", 0, "without an allocation of GPUs"),
        ("wrong", 3, "can never be placed: "),
        ("gated", 0, "scheduling gates that others must remove: example.com/quota"),
    ],
)
def test_every_state_of_a_pod(state: str, name: str, code: int, said: str) -> None:
    assert said in explained(state, f"team/{name}", code=code)


def test_a_pod_that_is_not_there_is_told_with_its_namesake(state: str) -> None:
    assert "there is no pod default/waits; there is team/waits" in explained(state, "waits", code=2)
    assert "there is no pod team/nobody\n" in explained(state, "team/nobody", code=2)
    assert "there is no pod team/wait; did you mean waits?" in explained(state, "team/wait", code=2)


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "a/b/c"])
def test_what_is_no_pods_name_is_told_as_that(state: str, name: str) -> None:
    assert f"error: {name!r} is not the name of a pod: use NAME, NAMESPACE/NAME or TYPE/NAME" in explained(
        state, name, code=2
    )


def test_many_nodes_are_cut_unless_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "many.yaml"
    nodes = "".join(f"- {{name: n{i:02}, mode: cgpu, gpus: {{count: 1, memory: {i + 1}GiB}}}}\n" for i in range(14))
    file.write_text(f"apiVersion: gputile.io/v1alpha1\nkind: Cluster\nnodes:\n{nodes}" + pod("p", 16), encoding="utf-8")
    assert "... and 4 more nodes that are further from fitting. --all shows all nodes." in explained(
        str(file), "team/p", code=3
    )
    assert "n13" in explained(str(file), "team/p", "--all", code=3)


def test_nodes_and_gpus_of_which_the_same_is_said_are_one_row(tmp_path: Path) -> None:
    file = tmp_path / "equal.yaml"
    nodes = "- {name: 'n', count: 7, mode: cgpu, gpus: {count: 8, memory: 4GiB, unhealthy: [2]}}\n"
    file.write_text(f"apiVersion: gputile.io/v1alpha1\nkind: Cluster\nnodes:\n{nodes}" + pod("p", 9), encoding="utf-8")
    text = explained(str(file), "team/p", code=3)
    rows = text[text.index("NODE") :].partition("\n\n")[0].splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["n-1", "0-1,3-7", "2"]
    assert rows[0].startswith("n-1 and 6 more  ")
    assert explained(str(file), "team/p", "--all", code=3).count("0-1,3-7") == 7


WORKLOAD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: team}
spec:
  replicas: 3
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 16}}}]}
"""


@pytest.mark.parametrize("word", ["deployment/web", "deployments/web", "deploy/web", "Deployment/web"])
def test_a_pod_of_a_workload(tmp_path: Path, word: str) -> None:
    path = tmp_path / "state.yaml"
    path.write_text(CLUSTER + "---" + WORKLOAD)
    result = run.invoke(app, ["explain", word, "-n", "team", "--cluster", str(path)])
    assert (result.exit_code, "web has 3 pods, of which 3 are pending; this is web-" in result.stderr) == (3, True)
    assert "Pod team/web-" in result.stdout
    assert run.invoke(app, ["explain", "sts/web", "-n", "team", "--cluster", str(path)]).exit_code == 2
