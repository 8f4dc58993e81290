"""Where ``gputile nodepool`` reads its description, and what it says of one that is none."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a NodePool of gputile.io/v1alpha1 is a mapping, this is nothing"),
        ("pool\n", "a NodePool of gputile.io/v1alpha1 is a mapping, this is a string"),
        ("- pool\n", "a NodePool of gputile.io/v1alpha1 is a mapping, this is a list"),
        ("a: 1\n---\na: 2\n", "it holds several documents, where one is expected"),
        ("a: [1\n", "line 2, column 1: a comma or ] is missing before this: [ at line 1, column 4 is still open"),
    ],
)
def test_a_file_that_is_no_pool(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["nodepool", "-f", str(path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {path}: {said}\n"


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
