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


def test_the_worst_case_of_a_test_counts_and_what_failed_is_listed(pytester: pytest.Pytester) -> None:
    pytester.mkpydir("tests")
    Path("tests/test_a.py").write_text(
        "import pytest\n"
        "@pytest.mark.xdist_group('g')\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_once(number): assert number == 1, 'not one'\n"
        "def test_good(): ...\n"
        "@pytest.mark.skip\n"
        "def test_left_out(): ...\n",
        encoding="utf-8",
    )
    pytester.runpytest_subprocess("--junit-xml=a.xml", "-n1", "--dist=loadgroup")
    Path("killed.xml").write_text("<testsuites><testsuite>", encoding="utf-8")
    files = [Path("a.xml"), Path("killed.xml")]
    assert outcomes(files) == {
        "test_a.py::test_once": FAILED,
        "test_a.py::test_good": PASSED,
        "test_a.py::test_left_out": SKIPPED,
    }
    assert failures(files) == ["FAILED tests/test_a.py::test_once[2]@g", "  AssertionError: not one"]
