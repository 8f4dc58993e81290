"""The examples are read without a mistake, and every pod in them has a node that it may go to."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gputile.cli.app import app

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
APPLICATIONS = sorted((EXAMPLES / "applications").glob("*.yaml"))
KUEUE = EXAMPLES / "kueue" / "jobs.yaml"


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    "files", [*([file] for file in (*APPLICATIONS, KUEUE)), APPLICATIONS], ids=lambda files: files[0].stem
)
def test_every_pod_of_the_applications_has_a_place(files: list[Path], tmp_path: Path) -> None:
    """Alone and all together, with strict fields, admission, and gangs planned as the chart plans them."""
    configuration = tmp_path / "gputile.yaml"
    configuration.write_text("{apiVersion: gputile.io/v1alpha1, kind: Configuration, admission: {gangs: true}}")
    options = [
        f"--cluster={EXAMPLES / 'cluster.yaml'}",
        f"--config={configuration}",
        *(f"--filename={file}" for file in files),
    ]
    result = CliRunner().invoke(app, ["simulate", *options])
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("file", APPLICATIONS, ids=lambda file: file.stem)
def test_an_application_says_what_it_is_and_names_versions(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.split("apiVersion", 1)[0].splitlines()) >= 3
    assert all(line.startswith("# ") for line in text.split("apiVersion", 1)[0].splitlines())
    images = re.findall(r"image: (\S+)", text)
    assert images
    assert [image for image in images if not re.search(r":[\w.-]*\d[\w.-]*$", image)] == []
    assert all(document["metadata"]["name"] for document in yaml.safe_load_all(text))


def test_no_service_sets_the_variables_of_vllm() -> None:
    """A Service called vllm makes VLLM_PORT an address in each container there; vLLM takes it for its port."""
    documents = [each for path in APPLICATIONS for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    assert "vllm" not in [each["metadata"]["name"] for each in documents if each["kind"] == "Service"]
    specs = [spec for each in documents for spec in pod_specs_in(each)]
    of_vllm = [spec for spec in specs if any("/vllm" in container["image"] for container in spec["containers"])]
    assert [spec["enableServiceLinks"] for spec in of_vllm] == [False] * 2


def pod_specs_in(value: object) -> Iterator[dict[str, Any]]:
    """Yield what has containers, however deep."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for each in value.values():
            yield from pod_specs_in(each)
