"""What is written as YAML reads back as what it was, for readers in Go too."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gputile.support.yaml_loader import load_document
from gputile.support.yaml_writer import yaml_text

ODD = ["1e5", "1E5", "1e+5", "1.5e3", "7812e34", "0e0", "0o17", "08", "1_000", "0b1", "0x1F", "+1", "y", "N", "No"]
ODD += ["on", "~", "null", "", ".inf", ".NaN", "1:30", "2026-01-31", "<<", "=", "-", "---", "a: b", "# a", " a", "a\nb"]
ODD += ["a\x85b", "a\u2028b", "\u2029", "\ufeffa", "é", "\x1b[0m", "*a", "&a", "!a", "%a", "@a", "`a", "a" * 200 + " b"]
TEXTS = st.sampled_from(ODD) | st.text()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)


@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    assert load_document(yaml_text([value])) == value
    assert yaml.safe_load(yaml_text([value])) == value


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_stay_texts_also_as_keys_and_in_folded_lines(text: str) -> None:
    assert load_document(yaml_text([{text: [text]}], width=80)) == {text: [text]}


def test_plain_words_have_no_quotes() -> None:
    assert yaml_text([{"name": "node-1", "mib": 15360, "when": "no more than 1e5 fit"}, "é"]) == (
        "name: node-1\nmib: 15360\nwhen: no more than 1e5 fit\n--- é\n...\n"
    )
