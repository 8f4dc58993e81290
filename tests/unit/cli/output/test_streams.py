"""``-o yaml`` has the same values as ``-o json``, and both can be read whatever the output's encoding is."""

import io
import json
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.cli.output.streams import write_json, write_yaml
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


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(TEXTS, TEXTS, max_size=3), st.sampled_from(["ascii", "latin-1", "utf-8"]))
@pytest.mark.requirement("B4")
def test_what_an_encoding_lacks_is_written_so_that_it_can_be_read(value: dict[str, str], encoding: str) -> None:
    """As where LANG is C: ``\\xe9`` is no escape of JSON."""
    for writer, reader in ((write_json, json.loads), (write_yaml, load_document)):
        written = io.BytesIO()
        with patch.object(sys, "stdout", io.TextIOWrapper(written, encoding=encoding)):
            writer(value)
            text = written.getvalue().decode(encoding)
        assert reader(text) == value
