"""What ``gputile simulate`` prints: the demo as a newcomer sees it, and the other forms."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.api.wording import gib_text
from gputile.cli.app import app
from gputile.tools.views.terminal_text import columns_of

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
run = CliRunner()
CLUSTER = ["simulate", "--cluster", str(EXAMPLES / "cluster.yaml")]
WORKLOADS = ["-f", str(EXAMPLES / "workloads.yaml"), "-f", str(EXAMPLES / "teams.yaml")]
DEMO = [*CLUSTER, *WORKLOADS, "-f", str(EXAMPLES / "too-large.yaml"), "--compare", "packing"]

NODE = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes: [{name: 'n', mode: share, gpus: {count: 2, model: T4, memory: 15GiB}}]
"""
PODS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 8}}}]}
"""


@pytest.fixture
def few(tmp_path: Path) -> list[str]:
    """Two GPUs, and four pods each of which takes more than half of one."""
    (tmp_path / "c.yaml").write_text(NODE)
    (tmp_path / "w.yaml").write_text(PODS % 4)
    return ["simulate", "--cluster", str(tmp_path / "c.yaml"), "-f", str(tmp_path / "w.yaml")]


def test_make_demo_runs_this() -> None:
    """It is one command, and only a pod without a place may end it otherwise than well."""
    done = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True)
    command = next(line for line in done.stdout.splitlines() if "gputile simulate" in line)
    words = [word.replace(f"{EXAMPLES}/", "examples/") for word in DEMO]
    assert command.endswith(f"gputile {' '.join(words)} || test $? -eq 3")


@pytest.mark.requirement("B4")
@pytest.mark.parametrize("width", [60, 138])
def test_the_demo(width: int) -> None:
    result = run.invoke(app, DEMO, env={"COLUMNS": str(width)})
    assert result.exit_code == 3
    assert max(map(columns_of, result.stdout.splitlines())) <= width
    text = " ".join(result.stdout.split())
    assert text.startswith("35 of 36 pods have a place; 30 of 38 GPUs are in use.")
    assert len(re.findall(r"[█░]+ [\d.]+/[\d.]+", text.partition("PLACEMENT")[0])) == 38
    assert "No place for default/too-large: NODE WHY NOT isolated, mps its largest GPU has 22 GiB" in text
    assert "It would fit if - pod default/too-large asks for no more than 22 GiB (aliyun.com/gpu-mem: 22)" in text
    assert "binpack 35/36 30/38 packing 35/36 26/38 With packing: 4 GPUs fewer in use." in text
    assert "embeddings" in text
    assert "embeddings-" not in text


@pytest.mark.requirement("L3")
def test_notes_come_last(tmp_path: Path) -> None:
    assert "note: " not in run.invoke(app, DEMO).output
    (tmp_path / "old.yaml").write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: old}, spec: {containers: [{name: main, image: i, "
        "resources: {limits: {alpha.kubernetes.io/nvidia-gpu: 1}}}]}}"
    )
    result = run.invoke(app, [*DEMO, "-f", str(tmp_path / "old.yaml")])
    assert result.output.index("note: ") > result.output.index("With packing")
    assert "note: " not in result.stdout
    assert result.stderr.count("is the old name of nvidia.com/gpu") == 1


def test_names_in_errors_give_no_orders(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(NODE)
    (tmp_path / "p.yaml").write_text('apiVersion: v1\nkind: Pod\nmetadata: {name: "\\e[2J\\e[31mevil"}\n')
    result = run.invoke(app, ["simulate", "--cluster", str(tmp_path / "c.yaml"), "-f", str(tmp_path / "p.yaml")])
    assert result.exit_code == 2
    assert "evil" in result.stderr
    assert "\x1b[2J" not in result.output


def test_the_drawing_says_what_json_says() -> None:
    nodes = json.loads(run.invoke(app, [*CLUSTER, *WORKLOADS, "-o", "json"]).stdout)["nodes"]
    drawn = run.invoke(app, [*CLUSTER, *WORKLOADS], env={"COLUMNS": "100"}).stdout
    amounts = [f"{gib_text(gpu['bookedMib'])}/{gib_text(gpu['totalMib'])}" for node in nodes for gpu in node["gpus"]]
    assert re.findall(r"[█░] ([\d.]+/[\d.]+)", drawn) == amounts


def test_pods_of_one_reason_are_named_once(few: list[str]) -> None:
    result = run.invoke(app, few, env={"COLUMNS": "80"})
    assert result.exit_code == 3
    text = " ".join(result.stdout.split())
    assert "default deployment/web 2/4 8 GiB n Memory is not limited on n (mode share): " in text
    assert len(re.findall("No place for ", text)) == 1
    assert "asks for no more than 7 GiB (aliyun.com/gpu-mem: 7) (then on n)" in text


def test_wide_has_a_row_for_each_pod_that_has_a_place(few: list[str]) -> None:
    result = run.invoke(app, [*few, "-o", "wide"])
    assert [line.split()[:1] for line in result.stdout.splitlines()[:4]] == [["NAMESPACE"], *[["default"]] * 3]
    assert " and 1 more  <none>" in result.stdout
    assert "Allocated/Total GPU Memory In Cluster:" in result.stdout
    narrow = run.invoke(app, [*few, "-o", "wide"], env={"COLUMNS": "60"}).stdout.partition("\n\n")[0]
    assert max(map(len, narrow.splitlines())) <= 60
