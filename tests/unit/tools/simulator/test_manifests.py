"""Files are read as kubectl reads them, and mistakes name their place."""

import io
import sys
from pathlib import Path

import pytest

from gputile.tools.simulator import manifests
from gputile.tools.simulator.manifests import ManifestError, Note, Origin, load_manifests, merged_notes
from tests.unit.tools.simulator.builders import load_text, write


def test_nulls_are_absent(tmp_path: Path) -> None:
    meta, spec = "{name: a, labels: {x: }, annotations: }", "{containers: , volumes: []}"
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {meta}\nspec: {spec}\n"
    (manifest,) = load_text(tmp_path, text)
    assert manifest.body["metadata"] == {"name": "a", "labels": {}}
    assert manifest.body["spec"] == {"volumes": []}


def test_lists_expand(tmp_path: Path) -> None:
    text = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Pod, metadata: {name: a}}
- {apiVersion: v1, kind: Service, metadata: {name: b}}
---
apiVersion: v1
kind: NodeList
items:
- {metadata: {name: c}}
---
{apiVersion: apps/v1, kind: DeploymentList, items: [{metadata: {name: d}}]}
"""
    found = [(m.api_version, m.kind, str(m.origin).rpartition("m.yaml")[2]) for m in load_text(tmp_path, text)]
    assert found == [
        ("v1", "Pod", ", document 1, item 1: Pod/a"),
        ("v1", "Service", ", document 1, item 2: Service/b"),
        ("v1", "Node", ", document 2, item 1: Node/c"),
        ("apps/v1", "Deployment", ", document 3, item 1: Deployment/d"),
    ]


def test_directories_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.yml", "a.yaml", "c.json", "ignored.txt"):
        write(tmp_path, f'{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}"}}}}', name)
    (tmp_path / "below.yaml").mkdir()
    for twice, why in ((["-", "-"], "named twice"), ([""], "a path is empty")):
        with pytest.raises(ManifestError, match=why):
            load_manifests(twice)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(ManifestError, match="standard input: there are no objects"):
        load_manifests(["-"])
    text = b"apiVersion: v1\nkind: Pod\nmetadata: {name: z}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    loaded = load_manifests([str(tmp_path), "-"])
    assert [m.body["metadata"]["name"] for m in loaded] == ["a.yaml", "b.yml", "c.json", "z"]
    assert loaded[-1].origin.file == "standard input"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("just text", "document 1: an object is a mapping with apiVersion and kind, this is a string"),
        ("apiVersion: v1", "document 1: kind: must be a string"),
        ("kind: Pod\nmetadata: {name: x}", "document 1: Pod/x: apiVersion: must be a string"),
        ("apiVersion: v1\nkind: List\nitems: []", "m.yaml: there are no objects"),
        ("a: 1\na: 2", "document 1: line 2, column 1: the key 'a' is written twice"),
        ("a: {{ .Values.a }}\n  {{- end }}", "build manifests with helm first: helm template CHART"),
        (b"\xff", "it is not UTF-8 text: "),
        (b"\x1f\x8b\x08", "m.yaml: it is compressed by gzip: unpack it first"),
        ('{"apiVersion": "v1", "kind": "Pod", "x": ' + "[" * 500 + "]" * 500 + "}", "deeper than 100 levels"),
    ],
)
def test_messages(tmp_path: Path, text: bytes | str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        load_text(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ManifestError, match="No such file"):
        load_manifests([str(tmp_path / "none.yaml")])
    with pytest.raises(ManifestError, match="the directory has no"):
        load_manifests([str(tmp_path)])
    with pytest.raises(ManifestError, match="null"):
        load_manifests(["a\0b"])
    monkeypatch.setattr(manifests, "MOST_BYTES", 1024)
    with pytest.raises(ManifestError, match="larger than"):
        load_text(tmp_path, b"#" * 2000)


def test_an_address_is_no_file() -> None:
    """kubectl reads them, so people try."""
    with pytest.raises(ManifestError, match=r"^https://example.com/a.yaml: addresses are not read; .* pipe it in"):
        load_manifests(["https://example.com/a.yaml"])


def origin(name: str, file: str = "a.yaml", document: int = 1) -> Origin:
    return Origin(file, document, 0, "Pod", name)


def test_what_is_said_of_several_objects_is_said_once() -> None:
    notes = [Note("old", origin("p")), Note("odd", origin("p")), Note("old", origin("q", document=2)), Note("free")]
    assert merged_notes(notes) == ["a.yaml: Pod/p, Pod/q: old", "a.yaml, document 1: Pod/p: odd", "free"]
