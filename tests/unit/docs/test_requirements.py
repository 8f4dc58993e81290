"""Each requirement has tests, and each test names requirements that exist."""

from docs.generator.requirements import PLANNED, ids, shown_by


def test_every_id_has_a_test_but_those_that_are_planned() -> None:
    assert [each for each in ids() if each not in shown_by()] == sorted(PLANNED)


def test_no_test_names_an_id_that_does_not_exist() -> None:
    assert set(shown_by()) <= set(ids())
