"""Nodes of which the same is said are told together."""

import pytest

from gputile.core.placement.fit_refusal import grouped

pytestmark = pytest.mark.requirement("B4")
SAID = [("a", "full"), ("b", "small"), ("c", "full"), ("d", "full"), ("e", "full")]


def test_equal_reasons_are_one_text() -> None:
    assert grouped(SAID, 5, 10) == ["4 nodes (a, c, d, ...): full", "b: small"]


def test_the_same_nodes_in_another_order_are_the_same_text() -> None:
    assert grouped([("b", "full"), ("d", "full"), ("c", "full"), ("a", "full")], 4, 10) == [
        "4 nodes (a, b, c, ...): full"
    ]


def test_what_is_left_out_is_counted() -> None:
    assert grouped(SAID, 9, 1) == ["4 nodes (a, c, d, ...): full", "and 5 more"]
