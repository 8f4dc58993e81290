"""``gputile simulate`` as a user runs it: exit codes, formats, errors."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
run = CliRunner()

NODE = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes:
- {name: 'n', mode: share, gpus: {count: 2, model: T4, memory: 15GiB}, taints: []}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: %s}}}]}
"""


def write(directory: Path, name: str, text: str) -> str:
    (directory / name).write_text(text, encoding="utf-8")
    return str(directory / name)


@pytest.mark.requirement("V2")
@pytest.mark.parametrize(
    ("name", "row", "total"),
    [
        ("inspect-binpack", ["15/15", "9/15", "0/15", "0/15", "24/60"], "24/60 (40%)"),
        ("inspect-spread", ["4/15", "4/15", "0/15", "4/15", "12/60"], "12/60 (20%)"),
    ],
)
def test_the_documents_tables(name: str, row: list[str], total: str) -> None:
    result = run.invoke(app, ["simulate", "--cluster", str(EXAMPLES / f"{name}.yaml"), "-o", "inspect"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["cn-shanghai.192.0.2.109", "192.0.2.109", *row]
    assert lines[4] == total


def test_what_is_not_placed_has_a_reason_and_the_exit_code_is_3(tmp_path: Path) -> None:
    files = [write(tmp_path, "c.yaml", NODE), write(tmp_path, "p.yaml", POD % 16)]
    result = run.invoke(app, ["simulate", "--cluster", files[0], "-f", files[1], "-o", "json"])
    assert result.exit_code == 3
    (decision,) = json.loads(result.stdout)["decisions"]
    assert decision["node"] is None
    assert decision["gpus"] == []
    assert "n: its largest GPU has 15 GiB; the pod needs 16 GiB on one GPU" in decision["reason"]


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (NODE.replace("share", "magic"), '"default", "cgpu", "core_mem", "share", "mps", "topology"'),
        ("nodes: [", "c.yaml"),
        ("kind: Service\napiVersion: v1\nmetadata: {name: s}\n", "no file describes a node"),
    ],
)
def test_input_that_cannot_be_used_is_exit_code_2(tmp_path: Path, cluster: str, said: str) -> None:
    result = run.invoke(app, ["simulate", "--cluster", write(tmp_path, "c.yaml", cluster)])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_a_pod_on_a_node_that_is_not_there_is_told(tmp_path: Path) -> None:
    """A mistyped node would make its load vanish without a word."""
    bound = (
        POD % 1
        + "---\n"
        + (POD % 1).replace("name: p}", "name: q, uid: u}").replace("{containers", "{nodeName: m, containers")
    )
    files = ["--cluster", write(tmp_path, "c.yaml", NODE), "-f", write(tmp_path, "p.yaml", bound)]
    result = run.invoke(app, ["simulate", *files])
    assert result.exit_code == 0
    assert "note: pod default/q is ignored: there is no node m" in result.stderr


@pytest.mark.requirement("U2")
def test_a_wrong_configuration_names_the_rule(tmp_path: Path) -> None:
    config = write(tmp_path, "g.yaml", "gpuMemoryUnit: 32MiB\n")
    result = run.invoke(app, ["simulate", "--cluster", write(tmp_path, "c.yaml", NODE), "--config", config])
    assert result.exit_code == 2
    assert "the smallest valid unit is 64MiB" in result.stderr


@pytest.mark.requirement("U2", "U3")
@pytest.mark.parametrize("command", [["simulate", "-f"], ["explain", "p", "--cluster"]])
@pytest.mark.parametrize(
    ("described", "configured", "code", "said"),
    [
        ("", "gpuMemoryUnit: 128MiB", 0, "2 GiB"),
        ("gpuMemoryUnit: 128MiB", "placement: spread", 0, "2 GiB"),
        ("gpuMemoryUnit: 128MiB", "gpuMemoryUnit: 128MiB", 0, "2 GiB"),
        ("gpuMemoryUnit: 128MiB", "gpuMemoryUnit: 1GiB", 2, "it is 128 MiB, and the configuration has 1024 MiB"),
    ],
)
def test_the_unit_of_the_configuration_and_of_the_description(
    tmp_path: Path, command: list[str], described: str, configured: str, code: int, said: str
) -> None:
    """Sixteen units of 128 MiB are 2 GiB; two units that differ are no cluster."""
    files = [
        write(tmp_path, "c.yaml", NODE + described),
        write(tmp_path, "g.yaml", configured),
        write(tmp_path, "p.yaml", POD % 16),
    ]
    form = ["-o", "wide"] if command[0] == "simulate" else []
    result = run.invoke(app, [*command, files[2], "--cluster", files[0], "--config", files[1], *form])
    assert result.exit_code == code, result.output
    assert said in result.output


def test_the_extender_listens_beyond_loopback_with_tls_only() -> None:
    result = run.invoke(app, ["extender", "--host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "--tls-cert" in result.stderr
