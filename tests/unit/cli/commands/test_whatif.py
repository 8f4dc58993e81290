"""``gputile simulate`` with what-ifs: more pods, another unit, fewer nodes."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.cli.app import app
from gputile.core.devices.allocation import Allocation, GpuShare, encode_allocation
from gputile.tools.simulator.manifests import make_gpu_uuid

pytestmark = pytest.mark.requirement("B4")

ROOT = Path(__file__).resolve().parents[4]
run = CliRunner()

CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes:
- {name: a, mode: share, gpus: {count: 1, model: T4, memory: 15GiB}, labels: {zone: x}, taints: []}
- {name: b, mode: share, gpus: {count: 1, model: T4, memory: 15GiB}, labels: {zone: 'y'}, taints: []}
"""


def pod(name: str, units: int, extra: str = "") -> str:
    limits = f"{{aliyun.com/gpu-mem: {units}}}"
    return f"""---
apiVersion: v1
kind: Pod
metadata: {{name: {name}{", uid: u" if "nodeName" in extra else ""}}}
spec: {{{extra}containers: [{{name: c, image: i, resources: {{limits: {limits}}}}}]}}
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    texts = {
        "cluster": CLUSTER,
        "small": pod("small", 4),
        "both": pod("one", 10) + pod("two", 3),
        "huge": pod("huge", 16),
        "none": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {name: str(tmp_path / name) for name in texts}


def simulated(files: dict[str, str], *options: str, code: int = 0) -> Any:
    result = run.invoke(app, ["simulate", "--cluster", files["cluster"], "-o", "json", *options])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_how_many_more_fit_and_what_stops_the_next(files: dict[str, str]) -> None:
    answer = simulated(files, "--fit", files["small"])["fit"]
    assert (answer["copies"], answer["pods"], answer["nodes"]) == (6, 1, {"a": 3, "b": 3})
    assert "GPU 0 has 3 GiB of 15 GiB free; the pod needs 4 GiB on one GPU" in answer["stoppedBy"]


def test_what_does_not_fit_once_has_the_exit_code_3(files: dict[str, str]) -> None:
    assert simulated(files, "--fit", files["huge"], code=3)["fit"]["copies"] == 0


@pytest.mark.requirement("U3")
def test_another_unit_changes_what_new_pods_ask_for(files: dict[str, str]) -> None:
    """Four units are 512 MiB then; thirty of them fill a GPU of 15 GiB."""
    answer = simulated(files, "--unit", "128MiB", "--fit", files["small"])
    assert answer["fit"]["copies"] == 60
    assert simulated(files, "--unit", "1GiB", "--fit", files["small"])["fit"]["copies"] == 6


@pytest.mark.requirement("U5")
def test_another_unit_leaves_running_pods_their_bytes(files: dict[str, str], tmp_path: Path) -> None:
    """Ten units of 1 GiB stay 10 GiB, and the 5 GiB that are left count in the new unit."""
    (tmp_path / "runs").write_text(running("runs", "a", 10), encoding="utf-8")
    for unit, copies in (("1GiB", 1 + 3), ("512MiB", 2 + 7), ("3GiB", 0 + 1)):
        answer = simulated(files, "-f", str(tmp_path / "runs"), "--unit", unit, "--fit", files["small"])
        assert answer["fit"]["copies"] == copies


def test_pods_of_a_node_that_leaves_look_for_another_place(files: dict[str, str], tmp_path: Path) -> None:
    """The pod that ran on a goes to b, before the one that is pending; a DaemonSet's goes with its node."""
    (tmp_path / "pods").write_text(pod("late", 15) + pod("runs", 10, "nodeName: a, "), encoding="utf-8")
    options = ("-f", str(tmp_path / "pods"))
    answer = simulated(files, *options)
    assert {d["pod"]: d["node"] for d in answer["decisions"]} == {"late": "b"}
    for leaving in (("--without-node", "a"), ("--without-nodes", "zone=x")):
        answer = simulated(files, *options, *leaving, code=3)
        assert {d["pod"]: d["node"] for d in answer["decisions"]} == {"runs": "b", "late": None}
        assert [node["name"] for node in answer["nodes"]] == ["b"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--without-node", "c"), "there is no node c; the nodes are a, b"),
        (("--without-node", "aa"), "there is no node aa; did you mean a?"),
        (("--without-nodes", "zone=z"), "no node has the labels 'zone=z'"),
        (("--unit", "1MiB"), "the smallest valid unit is 64MiB"),
        (("--with-node", "2xT4"), "use COUNTxGPUSxMODEL[=MEMORY][:MODE]"),
        (("--with-node", "2x8"), "use COUNTxGPUSxMODEL[=MEMORY][:MODE]"),
        (("--with-node", "2x4xFoo:cgpu"), "the memory of a Foo is unknown: state it, as 2x4xFoo=48GiB:cgpu"),
        (("--with-node", "2x8xH1000"), "state it, as 2x8xH1000=48GiB; did you mean H100?"),
        (("--with-node", "2x4xT4:cgu"), "did you mean cgpu?"),
        (("--fit", "none"), "no file has a pod without a node"),
    ],
)
def test_what_cannot_be_imagined_is_said(files: dict[str, str], options: tuple[str, str], why: str) -> None:
    option, value = options
    result = run.invoke(app, ["simulate", "--cluster", files["cluster"], option, files.get(value, value)])
    assert result.exit_code == 2
    assert why in result.output


def running(name: str, node: str, units: int) -> str:
    """Return a pod with so many GiB of the node's GPU."""
    share = GpuShare(make_gpu_uuid(node, 0), 0, units * 1024)
    manifest = yaml.safe_load(pod(name, units, f"nodeName: {node}, "))
    text = encode_allocation(Allocation((share,), {"c": (share,)}, 1024, mode="share"))
    manifest["metadata"] |= {"uid": name, "annotations": {ALLOCATION_ANNOTATION: text}}
    return f"---\n{yaml.safe_dump(manifest)}"


HIGH = pod("high", 8, "priority: 100, ")


def test_pods_of_lower_priority_leave_and_are_named(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pods").write_text(running("l1", "a", 10) + running("l2", "b", 10) + HIGH)
    answer = simulated(files, "-f", str(tmp_path / "pods"))
    (decision,) = answer["decisions"]
    (victim,) = answer["preempted"]
    assert (decision["node"], victim["preemptors"]) == (victim["node"], ["default/high"])
    assert f"preempts default/{victim['pod']} (priority 0)" in decision["reason"]
    (off,) = simulated(files, "-f", str(tmp_path / "pods"), "--no-preemption", code=3)["decisions"]
    assert off["node"] is None


def test_a_pod_that_a_budget_guards_stays(files: dict[str, str], tmp_path: Path) -> None:
    budget = "apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b, uid: w, namespace: default}"
    budget = f"---\n{{{budget}, spec: {{selector: {{}}}}, status: {{disruptionsAllowed: %d}}}}\n"
    (tmp_path / "pods").write_text(HIGH + running("full", "b", 15))
    for allowed, code in ((0, 3), (1, 0)):
        (tmp_path / "state").write_text(CLUSTER + running("l", "a", 10) + budget % allowed)
        more = ("--cluster", str(tmp_path / "state"), "-f", str(tmp_path / "pods"))
        assert run.invoke(app, ["simulate", *more]).exit_code == code


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("2x8xH100:cgpu", [81559] * 16), ("1x2xA100-80GiB", [81920] * 2), ("1x1xFoo=48GiB:share", [49152])],
)
def test_nodes_that_come(files: dict[str, str], text: str, gpus: list[int]) -> None:
    nodes = simulated(files, "--with-node", text, "--fit", files["small"])["nodes"]
    new = [gpu["totalMib"] // 1024 for node in nodes if node["name"].startswith("new-1") for gpu in node["gpus"]]
    assert new == [mib // 1024 for mib in gpus]


PAGE = ROOT / "docs" / "guides" / "simulate.md"
COMMANDS = re.findall(r"^\$ gputile (simulate .*)$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_work(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = run.invoke(app, shlex.split(command))
    assert result.exit_code in (0, 3), result.output
    assert " in use.\n" in result.stdout
