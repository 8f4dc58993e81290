"""``-o yaml`` has the same values as ``-o json``, and reads back as what it was, for readers in Go too."""

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gputile.cli.terminal import yaml_text
from gputile.support.yaml_loader import load_document

CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes:
- {name: "1234e56", mode: cgpu, gpus: {count: 1, memory: 16GiB, model: "1e5"}}
- {name: "y", mode: cgpu, gpus: {count: 1, memory: 16GiB}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: "n", namespace: "7812e34"}
spec: {containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 4}}}]}
"""
run = CliRunner()


ODD = ["1e5", "0e0", "0o17", "08", "1_000", "0b1", "0x1F", "+1", "y", "N", "on", "~", "null", "", ".inf", "1:30"]
ODD += ["2026-01-31", "<<", "=", "-", "---", "a: b", "# a", " a", "a\nb", "a\x85b", "a\u2028b", "é", "\x1b[0m", "*a"]
ODD += ["&a", "!a", "%a", "@a", "`a", "a" * 200 + " b"]
TEXTS = (st.sampled_from(ODD) | st.text()).filter(lambda text: "\ufeff" not in text)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)


@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    assert load_document(yaml_text([value])) == value
    assert yaml.safe_load(yaml_text([value])) == value


def test_plain_words_have_no_quotes() -> None:
    assert yaml_text([{"name": "node-1", "mib": 15360, "when": "no more than 1e5 fit"}, "é"]) == (
        "name: node-1\nmib: 15360\nwhen: no more than 1e5 fit\n--- é\n...\n"
    )
