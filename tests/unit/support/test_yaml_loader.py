"""YAML as people write it is read as Kubernetes reads it; what is ambiguous, dangerous or too large is refused."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputile.support import yaml_loader
from gputile.support.yaml_loader import DEEPEST, DocumentError, load_document, load_documents

# sigs.k8s.io/yaml 1.6.0 was asked about each.
SCALARS: dict[object, str] = {
    5: "5",
    -1: "-1",
    8: "010 08 0o10 0b1000 0x8 0X8 +8 8.0",
    1000: "1_000 1e3 +1E3",
    0.5: "0.5 .5 5e-1 +.5",
    -5: "-.5e1",
    18446744073709551615: "18446744073709551615",
    None: "~ null Null NULL",
    True: "true True TRUE yes Yes YES on On ON y Y",
    False: "false False FALSE no No NO off Off OFF n N",
}
TEXTS = "tRUE nO nUll 1:30 2024-01-01 1.5.2 1e 0x 0x_ 0b2 = 500m 1Gi 1,000 12e45678 1e400 v1 -x"


@pytest.mark.parametrize(
    ("text", "value"), [(text, value) for value, forms in SCALARS.items() for text in forms.split()]
)
def test_a_scalar_is_what_it_is_for_kubernetes(text: str, value: object) -> None:
    (found,) = load_documents(f"a: {text}\n")
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize("text", TEXTS.split())
def test_what_only_looks_like_a_number_or_a_word_is_text(text: str) -> None:
    assert list(load_documents(f"{text}: {text}\n")) == [{text: text}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on: yes\n1: n\n010: a\n", {"true": True, "1": False, "8": "a"}),
        ("a: '5'\nb: !!str 5\nc:\n", {"a": "5", "b": "5", "c": None}),
        ('a: !!int "5"\nb: !foo 5\nc: !!python/object/apply:os.system [id]', {"a": 5, "b": "5", "c": ["id"]}),
        ("base: &b {x: 1, z: 2}\nnew: {<<: *b, z: 3}\n", {"base": {"x": 1, "z": 2}, "new": {"x": 1, "z": 3}}),
        (
            "a: &a {x: 1}\nb: &b {x: 2, z: 2}\nc: {<<: [*a, *b]}\n",
            {"a": {"x": 1}, "b": {"x": 2, "z": 2}, "c": {"x": 1, "z": 2}},
        ),
        ("&k a: &a [1, 2]\nb: *a\nc: *k\n", {"a": [1, 2], "b": [1, 2], "c": "a"}),
        ('{"a": [1.0, 0.5, null, 1e2]}', {"a": [1, 0.5, None, 100]}),
        ("{a: [1, 0.5]}", {"a": [1, 0.5]}),
        ("a: |\n  x\n  ---\n", {"a": "x\n---\n"}),
    ],
)
def test_values(text: str, value: object) -> None:
    assert list(load_documents(text)) == [value]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", []),
        ("# c\n---\na: 1\n---\n---\nb: 2\n...\n", [{"a": 1}, None, {"b": 2}]),
        ('{"a": 1}{"b": 2}\n {"c": 3}\n', [{"a": 1}, {"b": 2}, {"c": 3}]),
        ('---\n{"a": 1}\n---\nb: 2\n--- # c\n{"c": 3}\n', [{"a": 1}, {"b": 2}, {"c": 3}]),
        ('{"a": 1}\n---\nb: 2\n', [{"a": 1}, {"b": 2}]),
        ("\ufeffa: 1\r\n---\r\nb: 2\r\n", [{"a": 1}, {"b": 2}]),
    ],
)
def test_documents_are_told_apart_as_by_kubectl(text: str, values: list[object]) -> None:
    assert list(load_documents(text)) == values


LADDER = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 1000))  # one level more each line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: the key 'a' is written twice"),
        ("on: 1\ntrue: 2\n", "the key 'true' is written twice"),
        ('{"a": 1, "b": 1, "a": 2}', "the key 'a' is written twice"),
        ("a: *x\n", "line 1, column 4: found undefined alias"),
        ("a: &x 1\n---\nb: *x\n", "line 3, column 4: found undefined alias"),
        ("a: &x [*x]\n", f"deeper than {DEEPEST} levels"),
        (LADDER, "deeper than"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), f"deeper than {DEEPEST} levels"),
        ("[" * 200_000, "deeper than"),
        ("- " * 200_000, "deeper than"),
        ('{"a": ' * (DEEPEST + 1) + "1" + "}" * (DEEPEST + 1), "deeper than"),
        ('{"a": ' * 200_000, "deeper than"),
        ("a: !!int x\n", "line 1, column 4: invalid literal for int"),
        ("? [1, 2]\n: 3\n", "a key must be a string"),
        ("~: 1\n", "a key must be a string"),
        ("1.5: 1\n", "line 1, column 1: a key must be a string: write it in quotes"),
        ("<<: 5\n", "<< takes a mapping"),
        ("a: \x00\n", "character #x0000"),
        ('{"a": NaN}', "nan is not a finite number"),
        ('{"a": 1e400}', "inf is not a finite number"),
        ("a: 1\n---\nb: -.inf\n", "line 3, column 4: -.inf is not a finite number"),
        ('{"a": "\\ud800"}', "is not text"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        ("a: " + "9" * 5000, "digits"),
        ("a: 1\n---\nb: 2\n...\nc: 3\n", "line 5, column 1: did not find expected <document start>"),
        ('{"a": 1}\nb: 2\n', "line 1: only another JSON object"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        list(load_documents(text))


def test_an_alias_counts_as_often_as_it_stands_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_loader, "MOST_VALUES", 1000)
    laughs = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10))
    with pytest.raises(DocumentError, match="more than 1000 values"):
        load_document(f"a0: &a0 [x]\n{laughs}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name:x\nb: 1\n", "line 2, column 2: mapping values are not allowed in this context"),
        ("a: [1\nb: 3\n", "line 2, column 2: did not find expected ',' or ']'"),
        ("a:\n\t- b\n", "line 2, column 1: found character that cannot start any token"),
        ("a: 1\n---\nk: v\nnovalue\nb: 1\n", "line 5, column 1: could not find expected ':'"),
    ],
)
def test_a_mistake_has_its_line(text: str, said: str) -> None:
    with pytest.raises(DocumentError) as caught:
        list(load_documents(text))
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: \xff", "not UTF-8 text"),
        ("a: 1\n".encode("utf-16"), "not UTF-8 text"),
        (b"\x1f\x8b\x08", "it is compressed by gzip: unpack it first"),
        ("a: 1\n---\nb: 2\n", "several documents"),
    ],
)
def test_what_is_not_one_document(content: bytes | str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        load_document(content)


@given(st.text() | st.text(alphabet="{}[]:,-&*!?|>'\"#% \n\tab01.<~@\\"))
@example("!")
@example("&a")
@example("%YAML 9.9\n---\na")
@example("a: \ud800")
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    said = "read"
    try:
        list(load_documents(text))
    except DocumentError as error:
        said = str(error)
    assert said
