"""Files of too many objects are refused before they are read, and no others are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.tools.simulator import manifests
from gputile.tools.simulator.manifests import ManifestError, _excess, load_manifests
from tests.conftest import examples

MOST = 3
POD = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
BLOCK = "- apiVersion: v1\n  kind: Pod\n  spec:\n    containers:\n    - name: a\n    - name: b\n"
IN_BLOCK = "apiVersion: v1\nkind: List\nitems:  # below\n\n# of pods\n"
SCALARS = st.text("ab- \n#:", max_size=12) | st.integers(0, 9)
BODIES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text("ab"), inner))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MOST_OBJECTS", MOST)


def listed(number: int) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": [POD] * number}


FILES: dict[str, Callable[[int], str]] = {
    "JSON": lambda number: json.dumps(listed(number)),
    "JSON for people": lambda number: json.dumps(listed(number), indent=2),
    "YAML": lambda number: IN_BLOCK + BLOCK * number,
    "YAML, items further in": lambda number: IN_BLOCK + "".join(f"  {line}\n" for line in (BLOCK * number).split("\n")),
    "YAML of Windows": lambda number: (IN_BLOCK + BLOCK * number).replace("\n", "\r\n"),
    "YAML, in the second document": lambda number: f"{BLOCK}---\n{IN_BLOCK}{BLOCK * number}---\n{BLOCK}",
    "documents": lambda number: "---\n".join(["kind: Pod\n"] * number),
    "documents, each begun": lambda number: "---\nkind: Pod\n" * number,
}


@pytest.mark.parametrize("how", FILES)
@pytest.mark.parametrize("given_by", ["file", "standard input"])
def test_too_many_objects_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, given_by: str
) -> None:
    monkeypatch.setattr(manifests, "load_documents", lambda text: pytest.fail(f"reads {len(text)} characters"))
    file = tmp_path / "many"
    file.write_text(FILES[how](MOST + 1), newline="")
    with file.open("rb") as stream, pytest.raises(ManifestError, match=r"4 (objects|documents) are more than the 3"):
        load_manifests([str(file)]) if given_by == "file" else load_manifests(["-"], stream)


@pytest.mark.parametrize("how", FILES)
def test_as_many_as_there_may_be_are_read(how: str) -> None:
    assert _excess(FILES[how](MOST)) is None


@settings(max_examples=examples(100), deadline=None)
@given(bodies=st.lists(st.lists(BODIES, max_size=MOST), min_size=1, max_size=MOST), flow=st.booleans())
def test_what_lies_deeper_does_not_count(bodies: list[list[Any]], flow: bool) -> None:
    documents = [{"items": [{"body": each} for each in body], "more": body} for body in bodies]
    assert _excess(yaml.safe_dump_all(documents, default_flow_style=flow or None, sort_keys=False)) is None
    assert _excess(json.dumps(documents[0])) is None


@pytest.mark.parametrize("text", ["[" * 100_000, '{"items": ' * 100_000, '{"items": "\ud800"}', "items:\n" * 10])
def test_what_is_no_list_is_left_to_the_reader(text: str) -> None:
    assert _excess(text) is None
