"""The documents' statements: each stands in its document, and what shows it is there."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.walk import STATEMENTS, Statement
from tests.walk.documents import SOURCES
from tests.walk.table import FAILED, NOT_RUN, PASSED, outcomes, result, table

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


def test_the_table_tells_the_worst_of_what_shows_a_statement(tmp_path: Path) -> None:
    """Over all files of a run, and all cases of a test."""
    first, second = STATEMENTS[0].shown[0], STATEMENTS[1].shown[0]
    (tmp_path / "a.xml").write_text(f"<suite>{case(first, '[a]')}{case(first, '[b]')}</suite>", encoding="utf-8")
    (tmp_path / "b.xml").write_text(f"<suite>{case(second, '', '<failure/>')}</suite>", encoding="utf-8")
    (tmp_path / "killed.xml").write_text("", encoding="utf-8")
    files = sorted(tmp_path.iterdir())
    known = outcomes(files)
    assert (known[first], known[second]) == (PASSED, FAILED)
    assert (result(STATEMENTS[0], known), result(STATEMENTS[1], known)) == (PASSED, FAILED)
    assert result(STATEMENTS[2], known) == NOT_RUN
    lines = table(files)
    assert len(lines) == len(STATEMENTS) + 2
    assert STATEMENTS[0].text in lines[1]
    assert lines[-1].endswith(f"of {len(STATEMENTS)} statements are shown")


def case(test: str, more: str = "", inside: str = "") -> str:
    file, _, name = test.partition("::")
    classname = f"tests.{file.removesuffix('.py').replace('/', '.')}"
    return f'<testcase classname="{classname}" name="{name}{more}">{inside}</testcase>'
