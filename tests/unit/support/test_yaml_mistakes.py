"""What is wrong in the syntax of a YAML text is said in plain words, with its line and column."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.support.yaml_loader import DocumentError, load_documents

FITS = "its indentation fits no line above, or what stands before it in its line has ended"
TAB = "a tab stands where spaces must: YAML indents by spaces only"
KEYLESS = "this line has no key: write KEY: VALUE, with a space behind the colon"
NO_KEY = "no key can stand here: "


def mistake(text: str) -> str:
    with pytest.raises(DocumentError) as caught:
        list(load_documents(text))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: b: c\n", f"line 1, column 5: {NO_KEY}"),
        ("%YAML 3.0\n---\na: 1\n", "line 1, column 1: the version behind %YAML is not one that is read"),
        ("%YAML x\n---\na: 1\n", "line 1, column 7: the version behind %YAML is not one that is read"),
        ("%FOO\n---\na: 1\n", "line 1, column 5: a line that begins with % is a directive of YAML"),
        ("%\n---\na: 1\n", "line 1, column 2: a line that begins with % is a directive of YAML"),
        ('a: "\\uZZZZ"\n', "line 1, column 7: in double quotes \\x, \\u and \\U stand before 2, 4 and 8"),
        ('a: "\\U99999999"\n', "line 1, column 7: no character has the number behind \\u or \\U"),
        ("name:x\nb: 1\n", f"line 2, column 2: {NO_KEY}"),
        (
            "a: [1, 2\nb: 3\n",
            "line 2, column 2: a comma or ] is missing before this: [ at line 1, column 4 is still open",
        ),
        (
            "a: {b: 1\nc: 2\n",
            "line 2, column 2: a comma or } is missing before this: { at line 1, column 4 is still open",
        ),
        ("a:\n  - b\n c: 1\n", f"line 3, column 2: no key of the mapping that begins at line 1, column 1: {FITS}"),
        ("a: 'x' y\n", f"line 1, column 8: no key of the mapping that begins at line 1, column 1: {FITS}"),
        ("- a\nb: 1\n", f"line 2, column 1: no entry (- ) of the list that begins at line 1, column 1: {FITS}"),
        ("a: @x\n", "line 1, column 4: no text begins with @: write it in quotes"),
        ("a:\n\t- b\n", f"line 2, column 1: {TAB}"),
        ("a:\n  b: x\n\tc: 1\n", f"line 3, column 1: {TAB}"),
        ('a: "x\\qy"\n', "line 1, column 6: in double quotes a backslash begins an escape, and this is none"),
        ("a: *\n", "line 1, column 5: * and & stand before a name in YAML"),
        ("a: - b\n", "line 1, column 4: no entry of a list (- ) can stand here"),
        ("a: [\n", "line 2, column 1: a value is missing here, before the end of the text"),
        ("a: |x\n  y\n", "line 1, column 5: behind | and > the text begins in the next line"),
        ("a: !x!y z\n", "line 1, column 4: ! begins a tag in YAML, and this one is unknown"),
        ("k: v\nnovalue\nb: 1\n", f"line 2, column 1: {KEYLESS}"),
        ("a: 1\n---\nk: v\nnovalue\nb: 1\n", f"line 4, column 1: {KEYLESS}"),
        ("ü: 1\na: 'x\nb: 1\n", "line 2, column 4: the quote that begins here has no end"),
        ("ü: ü @\nä: `x`\n", "line 2, column 4: no text begins with `: write it in quotes"),
        ("a: !<x\n", "line 1, column 7: not to be read as YAML: did not find the expected '>'"),
    ],
)
def test_a_mistake_has_its_place_and_plain_words(text: str, said: str) -> None:
    assert mistake(text).startswith(said)


@given(st.text("ab:-[]{}'\"*&!|>%@\n\t #,?\\"))
def test_no_text_is_beyond_words(text: str) -> None:
    said = ""
    try:
        list(load_documents(text))
    except DocumentError as error:
        said = f"{error} "
    assert said != " "
    assert "{at}" not in said
    assert "{begin}" not in said
