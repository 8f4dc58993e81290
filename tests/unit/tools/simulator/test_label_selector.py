"""Selectors as kubectl's -l takes them."""

import pytest

from gputile.core.kube_predicates.node_fit import selects
from gputile.tools.simulator.what_if import SelectorError, parse_selector

pytestmark = pytest.mark.requirement("B4", "V3")
LABELS = {"a": "b", "zone": "z1", "empty": "", "gpus": "8", "example.com/pool": "x"}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True),
        ("a", True),
        ("! other", True),
        ("a == b", True),
        ("a!=c", True),
        ("empty=", True),
        ("zone notin (z1,z2)", False),
        ("empty in (,x)", True),
        ("a=b,zone in (z1,z2),!other,example.com/pool", True),
    ],
)
def test_what_is_selected(text: str, selected: bool) -> None:
    assert selects(parse_selector(text), LABELS) == selected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (",", "'' is not a requirement"),
        ("a in b", "'a in b' is not a requirement"),
        ("a=" + "v" * 64, "Invalid value"),
        ("a in (b c)", "a label's value must be"),
    ],
)
def test_what_is_none(text: str, said: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_selector(text)
    assert said in str(caught.value)
