"""``gputile schema``, and what commands print held against it."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.cli.commands.documents import SCHEMAS
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.livecluster import machine, put
from tests.unit.cli.reads.test_live_cluster import POD, configure
from tests.unit.docs.schemas import answer

run = CliRunner()
CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes:
- {name: a, mode: core_mem, gpus: {count: 2, memory: 15GiB, unhealthy: [1]}}
- {name: b, mode: topology, gpus: {count: 2, memory: 40GiB, bandwidth: nvlink}}
"""
PODS = """
apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  parallelism: 40
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: c
        image: i
        resources: {limits: {aliyun.com/gpu-mem: 2, aliyun.com/gpu-core.percentage: 20}}
"""


def printed(*words: str, code: int = 0) -> str:
    result = run.invoke(app, [*words])
    assert result.exit_code == code, result.output
    return result.stdout


def test_it_lists_and_prints_them() -> None:
    assert [line.split()[0] for line in printed("schema").splitlines()] == list(SCHEMAS)
    for name in SCHEMAS:
        assert json.loads(printed("schema", name))["title"] == f"gputile {name}"
    result = run.invoke(app, ["schema", "clster"])
    assert result.exit_code == 2
    assert "did you mean cluster?" in result.stderr


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "p.yaml").write_text(PODS)
    return ["--cluster", str(tmp_path / "c.yaml"), "-f", str(tmp_path / "p.yaml")]


def test_simulate(files: list[str]) -> None:
    words = ["simulate", *files, "--fit", files[-1], "--compare", "spread"]
    found = answer("simulate", printed(*words, "-o", "json", code=3))
    assert found["fit"]["stoppedBy"]
    assert {each["node"] for each in found["decisions"]} == {"a", None}
    assert yaml.safe_load(printed(*words, "-o", "yaml", code=3)) == found


def test_explain_and_inspect_of_files(files: list[str]) -> None:
    both = ["--cluster", files[1], "--cluster", files[3]]
    pod = answer("simulate", printed("simulate", *files, "-o", "json", code=3))["decisions"][-1]["pod"]
    assert answer("explain", printed("explain", pod, *both, "-o", "json"))["nodes"]
    assert len(answer("inspect", printed("inspect", *both, "-o", "json"))["nodes"]) == 2


def test_a_live_cluster(server: FakeApiServer, kubeconfig: str, tmp_path: Path) -> None:
    put(server, machine())
    configure(server, "gpuMemoryUnit: 1GiB")
    (tmp_path / "p.yaml").write_text(POD)
    live = ["--kubeconfig", kubeconfig]
    assert answer("inspect", printed("inspect", *live, "-o", "json"))["unitMib"] == 1024
    assert answer("status", printed("status", *live, "-o", "json", code=3))["phase"] == "NotInstalled"
    answer("simulate", printed("simulate", "--from-cluster", *live, "-f", str(tmp_path / "p.yaml"), "-o", "json"))
