"""Words about fields and values: which name is meant, and where a value stands."""

from typing import Any

import pytest

from gputile.api.wording import at, below, first_of, kind_of, known, nearest, shown, supported, unsupported


@pytest.mark.parametrize(
    ("name", "says"),
    [("placment", "; did you mean placement?"), ("PLACEMENT", "; did you mean placement?"), ("zzz", "")],
)
def test_a_near_name_is_suggested(name: str, says: str) -> None:
    assert nearest(name, ["placement", "trust"]) == says


def test_valid_values_are_named_but_the_empty_one_and_those_of_a_long_list() -> None:
    assert supported(["", "nvlink", 2]) == 'supported values: "nvlink", 2'
    assert supported(range(30)).endswith("18, 19, ...")
    assert unsupported("binpak", ["binpack"]).endswith('supported values: "binpack"; did you mean binpack?')
    assert known("ab") == "; known are a, b"
    assert known(map(str, range(30))) == ""


def test_paths_are_as_people_write_them() -> None:
    assert at("", "spec") == "spec"
    assert at("spec", "nodeName") == "spec.nodeName"
    assert at("metadata.labels", "a.io/b") == 'metadata.labels["a.io/b"]'
    assert (below("", "a"), below("a", ""), below("a", "b"), below("a", "[0].b")) == ("a", "a", "a.b", "a[0].b")


def test_values_are_shown_cut_and_printable() -> None:
    assert shown("a\nb") == '"a?b"'
    assert len(shown("x" * 1000)) == 65
    values: list[Any] = [{}, [], "", True, 1, None]
    words = ["a mapping", "a list", "a string", "a boolean", "a number", "nothing"]
    assert list(map(kind_of, values)) == words


def test_of_many_names_the_first_are_told_and_how_many_are_left() -> None:
    assert first_of(["a", "b", "c"], 3) == "a, b, c"
    assert first_of(["a", "b", "c"], 2) == "a, b and 1 more"
    assert first_of([], 2) == ""
