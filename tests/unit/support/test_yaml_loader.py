"""YAML as people write it is read; what is ambiguous, dangerous or too large is refused with its place."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputile.support.yaml_loader import DEEPEST, DocumentError, load_document, load_documents


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 0.5\nb: 16\nc: 1_000\nd: 010\ne: 0x1F\n", {"a": 0.5, "b": 16, "c": 1000, "d": 8, "e": 31}),
        ("a: 1:30\nb: 2024-01-01T00:00:00Z\n", {"a": "1:30", "b": "2024-01-01T00:00:00Z"}),
        ("on: yes\n1: n\n", {"true": True, "1": False}),
        ("a: y\nb: nO\nc: 'n'\nd: On\n", {"a": True, "b": "nO", "c": "n", "d": True}),
        ("a: 1e3\nb: 08\nc: 0o17\nd: 0B11\ne: -.5e1\nf: 1.0\n", {"a": 1000, "b": 8, "c": 15, "d": 3, "e": -5, "f": 1}),
        ("a: 1e\nb: 0x\nc: 1.5.\nd: ._5\ne: 1e30\n", {"a": "1e", "b": "0x", "c": "1.5.", "d": "._5", "e": 1e30}),
        ("a: 12e45678\nb: 0x" + "f" * 17, {"a": "12e45678", "b": "0x" + "f" * 17}),
        ("a: " + "9" * 5000, {"a": "9" * 5000}),
        ("010: a\n1.50: b\n1e1: c\ny: d\n", {"8": "a", "1.5": "b", "10": "c", "true": "d"}),
        ('{"a": 1.0, "b": 1e2}', {"a": 1, "b": 100}),
        ("a: '5'\nb: !!str 5\nc: ~\nd:\n", {"a": "5", "b": "5", "c": None, "d": None}),
        ("base: &b {x: 1, z: 2}\nnew: {<<: *b, z: 3}\n", {"base": {"x": 1, "z": 2}, "new": {"x": 1, "z": 3}}),
        ("a: &a [1, 2]\nb: *a\n", {"a": [1, 2], "b": [1, 2]}),
        ('{"a": [1, 0.5, null]}', {"a": [1, 0.5, None]}),
        ("{a: [1, 0.5]}", {"a": [1, 0.5]}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
    ],
)
def test_values(text: str, value: object) -> None:
    assert list(load_documents(text)) == [value]


def test_several_documents_and_empty_ones() -> None:
    assert list(load_documents("a: 1\n---\n---\nb: 2\n...\n")) == [{"a": 1}, None, {"b": 2}]
    assert list(load_documents("")) == []


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": 1}{"b": 2}\n {"c": 3}\n', [{"a": 1}, {"b": 2}, {"c": 3}]),
        ('---\n{"a": 1}\n---\nb: 2\n--- # c\n{"c": 3}\n', [{"a": 1}, {"b": 2}, {"c": 3}]),
        ("\ufeffa: 1\n---\n\ufeffb: 2\n--- # c\n\ufeff{c: 3}\n", [{"a": 1}, {"b": 2}, {"c": 3}]),
        ("a: 1\n---# c\nb: |\n  ---\n", [{"a": 1}, {"b": "---\n"}]),
        ("# c\n---\n---\na: 1\r\n---\r\nb: \ufeff\r\n", [None, {"a": 1}, {"b": "\ufeff"}]),
    ],
    ids=range(5),
)
def test_documents_are_told_apart_as_by_kubectl(text: str, values: list[object]) -> None:
    assert list(load_documents(text)) == values


def test_scalars_are_what_they_are_for_kubernetes() -> None:
    """sigs.k8s.io/yaml 1.6.0 was asked about each: as a value, and as a key, where it can be one."""
    for line in Path(__file__).with_name("yaml_scalars.jsonl").read_text("utf-8").splitlines():
        known = json.loads(line)
        for form, kind in ((f"a: {known['text']}\n", "is"), (f"{known['text']}: a\n", "key")):
            try:
                (found,) = load_documents(form)
            except DocumentError:
                assert kind not in known, form
                continue
            (read,) = found.values() if kind == "is" else found
            assert type(read) is type(known[kind]), form
            assert read == known[kind] or float(read) == float(known[kind]), form  # Go writes as few digits as tell it


def test_anchors_hold_within_one_document() -> None:
    with pytest.raises(DocumentError, match="stands for nothing"):
        list(load_documents("a: &x 1\n---\nb: *x\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' is written twice"),
        ('{"a": 1, "a": 2}', "the key 'a' is written twice"),
        ("a: &x [*x]\n", r"the alias \*x stands for nothing that is complete"),
        ("[" * 500 + "a" + "]" * 500, f"deeper than {DEEPEST} levels"),
        ("[" * 200_000, "deeper than"),
        ("{a: " * 5_000, "deeper than"),
        ("a:\n" + "".join("  " * i + "- \n" for i in range(1, 200)), f"deeper than {DEEPEST}"),
        ("a: !!binary '@@'\n", "line 1: a: '@@' is no text in base64"),
        ("a: !!binary /w==\n", "is no text in base64"),
        ("a: !!null x\n", "line 1: a: 'x' is not null"),
        ("? [1, 2]\n: 3\n", "a key must be a string$"),
        ("a: 1\nreplicas: {{ .Values.replicas }}\n", "line 2: {{ }} of a template is filled in first"),
        ("{{- if .Values.on }}\na: 1\n", "line 1: {{ }} of a template is filled in first, as helm template does"),
        ("x: &k [a]\n*k : 2\n", "a key must be a string, not an alias of something else"),
        ("x: &k\n*k : 2\n", "a key must be a string, this one is empty"),
        ("~: 1\n", "a key must be a string"),
        ("<<: 5\n", "<< takes a mapping"),
        ("a: b: c\n", "line 1, column 5: no key can stand here"),
        ("a: \x00\n", r"^the character U\+0000 is not allowed$"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": "\\ud800"}', "is not text"),
        ('{"\\ud800": 1}', "is not text"),
        ("a: 1\nb: !!float x\n", "line 2: b: 'x' is not a number"),
        ('{"a": 1e400}', "inf is no finite number"),
        ("a: 1\n---\nb: -.inf\n", "line 3: b: -inf is no finite number"),
        ("a:\n- b: [[0, 1], [0, .nan]]\n", r"line 2: a\[0\]\.b\[1\]\[1\]: nan is no finite number"),
        ("a: 1\n---\n\n}\n", "line 4, column 1: a value is missing here, before }"),
        ("a: 1\n--- {b: 2}\n", "line 2: behind --- only a comment"),
        ("a: 1\n---\n...\nb: 2\n", "line 3, column 1: "),
        ("a: 1\n---\nb: 2\n...\nc: 3\n", "line 5, column 1: this belongs to no value"),
        ("a: 1\n---\nb: 2\r---\rc: 3\n", "line 3: a second document begins within this one"),
        ('{"a": 1}{"b": 2}\n---\nc: 3\n', "line 1: what follows 2 JSON objects is not JSON"),
        ('{"a": 1}\n---\nb: 2\n', "line 1: what follows a JSON object is not JSON: .* begin with a line of ---"),
        ('{"a": 1}\n# that is all\n', "line 1: what follows a JSON object is not JSON"),
        ('---\n{"a": 1}\n---\nb: [\n', "line 5, column 1: "),
        ("a: 1\n\ufeffb: 2\n", "line 2: it begins with a byte order mark"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        list(load_documents(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: ! 5", {"a": "5"}),
        ("a: ! ~", {"a": "~"}),
        ("a: ! 'x'", {"a": "x"}),
        ("a: !foo 5", {"a": "5"}),
        ("a: !<!bar> 7", {"a": "7"}),
        ("a: !!foo true", {"a": "true"}),
        ("a: !!map x", {"a": "x"}),
        ("a: !!timestamp 2001-01-01", {"a": "2001-01-01"}),
        ("a: !!binary aGk=", {"a": "hi"}),
        ('a: !!int "5"', {"a": 5}),
        ("! 5: x", {"5": "x"}),
        ("!foo 5: x", {"5": "x"}),
        ("!!binary aGk=: x", {"hi": "x"}),
        ("&k a: b\nc: *k", {"a": "b", "c": "a"}),
        ("&k a: b\nc: {*k : d}", {"a": "b", "c": {"a": "d"}}),
        ("&k 5: b\nc: *k", {"5": "b", "c": 5}),
        ("a: &k z\n*k : q", {"a": "z", "z": "q"}),
        ("a: &k {}\nb: &k z\n*k : q", {"a": {}, "b": "z", "z": "q"}),
        ("a: !foo {b: 1}", {"a": {"b": 1}}),
        ("a: !!set {b: 1}", {"a": {"b": 1}}),
        ("a: ! [1]", {"a": [1]}),
        ("a: !!python/object/apply:os.system [id]", {"a": ["id"]}),
    ],
)
def test_tags_and_anchors_as_kubectl_reads_them(text: str, value: object) -> None:
    """kubectl 1.32 was asked: a tag that it does not know makes a text of a scalar, and nothing of the rest."""
    assert list(load_documents(text)) == [value]


def test_an_alias_counts_as_what_it_stands_for() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(DocumentError, match="more than 5000000 values"):
        list(load_documents("\n".join(lines)))


@given(st.text() | st.text(alphabet="{}[]:,-&*!?|>'\"#% \nab01.<~"))
@example("!")
@example("&a")
@example("--- &a !!map\n")
@example("%YAML 9.9\n---\na")
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(DocumentError):
        list(load_documents(text))


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"", None),
        (b"# nothing\n", None),
        (b"\xef\xbb\xbfa: 1\n", {"a": 1}),
        ("a: 1\n...\n", {"a": 1}),
        ("{a: {b: [1]}}", {"a": {"b": [1]}}),
        ("[" * DEEPEST + "]" * DEEPEST, None),
    ],
)
def test_one_document(content: bytes | str, value: object) -> None:
    found = load_document(content)
    assert value is None or found == value


# Each line nests one level on the page, and all of them together many.
LADDER = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 1000))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: \xff", "not UTF-8 text"),
        (b"\x1f\x8b\x08", "it is compressed by gzip: unpack it first"),
        ("a: 1\n---\nb: 2\n", "several documents"),
        ("[" * 100_000, "deeper than 100 levels"),
        ("a: " + "[" * 100_000, "deeper than 100 levels"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "deeper than 100 levels"),
        ("{'a':" * (DEEPEST + 1) + "1" + "}" * (DEEPEST + 1), "deeper than 100 levels"),
        (LADDER, "deeper than 100 levels"),
        ("a: 1\na: 2\n", "line 2: the key 'a' is written twice"),
    ],
    ids=range(9),
)
def test_what_is_not_one_document(content: bytes | str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        load_document(content)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_document_or_an_error(content: bytes) -> None:
    with contextlib.suppress(DocumentError):
        load_document(content)
