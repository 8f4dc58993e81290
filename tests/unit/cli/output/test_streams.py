"""``-o yaml`` has the same values as ``-o json``."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.support.yaml_loader import load_document

CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes:
- {name: "1234e56", mode: cgpu, gpus: {count: 1, memory: 16GiB, model: "1e5"}}
- {name: "y", mode: cgpu, gpus: {count: 1, memory: 16GiB}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: "n", namespace: "7812e34"}
spec: {containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 4}}}]}
"""
run = CliRunner()


@pytest.mark.requirement("B4")
def test_yaml_has_the_values_of_json(tmp_path: Path) -> None:
    cluster, workload = tmp_path / "c.yaml", tmp_path / "p.yaml"
    cluster.write_text(CLUSTER)
    workload.write_text(POD)
    for command in (
        ["simulate", "--cluster", str(cluster), "-f", str(workload), "--fit", str(workload)],
        ["inspect", "--cluster", str(cluster)],
    ):
        printed = [run.invoke(app, [*command, "-o", form]).stdout for form in ("json", "yaml")]
        assert load_document(printed[1]) == json.loads(printed[0])
        assert "1234e56" in printed[1]
