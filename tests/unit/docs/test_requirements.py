"""Each requirement has tests, and each test names requirements that exist."""

import pytest
from docs.generator.requirements import MARKER, PLANNED, TESTS, ids, shown_by


def test_every_id_has_a_test_but_those_that_are_planned() -> None:
    assert [each for each in ids() if each not in shown_by()] == sorted(PLANNED)


def test_no_test_names_an_id_that_does_not_exist() -> None:
    assert set(shown_by()) <= set(ids())


def test_a_run_can_choose_the_tests_of_an_id(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((TESTS / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.{MARKER}("U1", "U2")
        def test_of_both(): ...

        @pytest.mark.{MARKER}("U2")
        def test_of_one(): ...

        def test_of_none(): ...
        """
    )
    pytester.makeini(f"[pytest]\nmarkers = {MARKER}")
    pytester.runpytest("--requirement", "U2").assert_outcomes(passed=2, deselected=1)
