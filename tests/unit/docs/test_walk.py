"""The documents' statements: each stands in its document, and what shows it is there."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.walk import STATEMENTS, Statement
from tests.walk.documents import SOURCES

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
