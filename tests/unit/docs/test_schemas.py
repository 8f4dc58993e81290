"""The schemas are what the code says, describe every key, and take what people write where it is right."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from docs.generator.schemas import PLACES, ROOT, outdated

from gputile.api.config.v1alpha1 import Configuration
from gputile.cli.commands.documents import SCHEMAS
from tests.unit.docs.schemas import mistakes, validator

OF_KIND = {"Cluster": "cluster", "Configuration": "configuration", "NodePool": "nodepool", "PodKinds": "podkinds"}
PAGES = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
FILES = [*ROOT.glob("examples/**/*.yaml"), ROOT / "src/gputile/tools/simulator/pod_kinds.yaml"]


def written() -> list[tuple[str, str, Any]]:
    """Return the objects of gputile's own kinds in examples and on pages: where, the schema's name, and the object."""
    texts = [(path, path.read_text(encoding="utf-8")) for path in FILES]
    for page in PAGES:
        texts += [
            (page, block) for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        ]
    found = []
    for path, text in texts:
        for body in yaml.safe_load_all(text):
            if isinstance(body, dict) and str(body.get("apiVersion")).startswith("gputile.io/"):
                found.append((str(path.relative_to(ROOT)), OF_KIND[body["kind"]], body))
    return found


def test_the_files_are_what_the_code_says_in_both_places() -> None:
    assert outdated() == []
    assert [sorted(path.stem for path in place.glob("*.json")) for place in PLACES] == [sorted(SCHEMAS)] * 2


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_key_is_described_and_camel_case(name: str) -> None:
    for title, part in validator(name).schema["$defs"].items():
        for key, each in part.get("properties", {}).items():
            assert each.get("description"), (title, key)
            assert re.fullmatch("[a-z][a-zA-Z0-9]*", key), (title, key)


def test_examples_and_pages_have_files_of_each_kind_that_go_with_their_schema() -> None:
    objects = written()
    assert {name for _, name, _ in objects} == set(OF_KIND.values())
    for where, name, body in objects:
        assert mistakes(name, body) == [], where


def test_the_defaults_go_with_the_schema() -> None:
    assert mistakes("configuration", json.loads(msgspec.json.encode(Configuration()))) == []
    assert mistakes("configuration", {"gpuTime": {"policy": 2}}) == []


def test_the_chart_and_the_schema_say_the_same_of_values() -> None:
    chart = json.loads((ROOT / "charts/gputile/values.schema.json").read_text(encoding="utf-8"))["properties"]
    parts = validator("configuration").schema["$defs"]
    ours = parts["Configuration"]["properties"] | {"policy": parts["GpuTime"]["properties"]["policy"]}
    assert set(chart["placement"]["enum"]) == set(ours["placement"]["enum"])
    policies = [each for part in chart["gpuTime"]["properties"]["policy"]["anyOf"] for each in part["enum"]]
    assert set(map(repr, policies)) == set(map(repr, ours["policy"]["enum"]))


def test_the_wheel_has_them() -> None:
    assert Path(PLACES[0]).is_relative_to(ROOT / "src" / "gputile")
