"""The documents' statements: each stands in its document, and what shows it is there."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.walk import STATEMENTS, Statement
from tests.walk.documents import SOURCES
from tests.walk.table import FAILED, PASSED, SKIPPED, failures, outcomes

TESTS = Path(__file__).resolve().parents[2]


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("test", sorted({test for each in STATEMENTS for test in each.shown}))
def test_each_test_that_shows_a_statement_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert name in functions(file)
    assert name.startswith("test_")


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda each: f"{each.document}-{each.text}")
def test_each_statement_stands_in_its_document(statement: Statement) -> None:
    assert statement.shown
    files = sorted(SOURCES.glob(f"{statement.document}_*.txt"))
    if not files:
        pytest.skip("skipped: the documents are not beside this checkout")
    assert statement.literal in files[0].read_text(encoding="utf-8")


JUNIT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.test_a" name="test_once[1]@g" time="0.1" />
<testcase classname="tests.test_a" name="test_once[2]@g" time="0.1"
  ><failure message="AssertionError: not one">def test_once</failure></testcase>
<testcase classname="tests.test_a" name="test_good" time="0.1" />
<testcase classname="tests.test_a" name="test_left_out" time="0.1"
  ><skipped type="pytest.skip" message="unconditional skip">t.py:1</skipped></testcase>
</testsuite></testsuites>"""


def test_the_worst_case_of_a_test_counts_and_what_failed_is_listed(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(JUNIT, encoding="utf-8")
    (tmp_path / "killed.xml").write_text("<testsuites><testsuite>", encoding="utf-8")
    files = [tmp_path / "a.xml", tmp_path / "killed.xml"]
    assert outcomes(files) == {
        "test_a.py::test_once": FAILED,
        "test_a.py::test_good": PASSED,
        "test_a.py::test_left_out": SKIPPED,
    }
    assert failures(files) == ["FAILED tests/test_a.py::test_once[2]@g", "  AssertionError: not one"]
