"""Where ``gputile nodepool`` reads its description, and what it says of one that is none."""

from pathlib import Path

from typer.testing import CliRunner

from gputile.cli.app import app

POOL = """
apiVersion: gputile.io/v1alpha1
kind: NodePool
provider: gke
way: own-driver
name: pool
cluster: ml
location: europe-west4-a
instanceType: g2-standard-4
accelerator: nvidia-l4
gpus: {count: 1, memory: 23034MiB, model: NVIDIA L4}
mode: share
"""


def test_the_description_may_come_from_the_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(POOL)
    piped = CliRunner().invoke(app, ["nodepool", "-f", "-"], input=POOL)
    assert piped.exit_code == 0, piped.stderr
    assert piped.stdout == CliRunner().invoke(app, ["nodepool", "-f", str(path)]).stdout


def test_errors_name_the_standard_input() -> None:
    result = CliRunner().invoke(app, ["nodepool", "-f", "-"], input=POOL + "mod: x\n")
    assert (result.exit_code, result.stderr) == (2, "error: standard input: mod: unknown field; did you mean mode?\n")
