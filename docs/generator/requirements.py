"""Lists the requirements, and for each the tests whose marker ``requirement`` contains its id."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docs.generator.tables import code, table

TESTS = Path(__file__).resolve().parents[2] / "tests"
MARKER = "requirement"

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PLANNED: frozenset[str] = frozenset(_DATA.pop("planned"))
"""What is not built yet: no test may claim it."""
DEMANDS: dict[str, dict[str, str]] = _DATA
"""What each id demands, by the sections of the page."""


def ids() -> list[str]:
    """Return all ids, in the order of the page."""
    return [each for section in DEMANDS.values() for each in section]


@cache
def shown_by() -> dict[str, frozenset[Path]]:
    """Return the test files that verify each id, as paths below ``tests``.

    An id without a marker has no entry.
    """
    found: dict[str, set[Path]] = {}
    for path in TESTS.rglob("test_*.py"):
        for each in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(each, set()).add(path.relative_to(TESTS))
    return {each: frozenset(files) for each, files in found.items()}


def render() -> str:
    """Return the sections of the page."""
    shown = shown_by()
    return "\n\n".join(
        f"## {title}\n\n"
        + table(
            ("id", "demand", "shown by tests in"),
            [(each, text, _folders(shown.get(each, frozenset()))) for each, text in rows.items()],
        )
        for title, rows in DEMANDS.items()
    )


def _folders(files: frozenset[Path]) -> str:
    """Return the folders of ``files``.

    The names and the number of files are omitted, because they would change too often.
    """
    depths = ((file, 3 if file.parts[0] == "unit" else 1) for file in files)
    folders = {Path(*file.parent.parts[:depth]).as_posix() for file, depth in depths}
    return ", ".join(code(f"tests/{folder}".removesuffix("/.")) for folder in sorted(folders))


def _marked(module: ast.Module) -> Iterator[str]:
    """Yield the ids of each test function. The ids of ``pytestmark`` belong to all functions of a
    file.
    """
    everywhere = {
        each
        for statement in module.body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark"
        for each in _ids(statement.value)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test"
        ):
            yield from sorted(
                everywhere | {each for decorator in node.decorator_list for each in _ids(decorator)}
            )


def _ids(expression: ast.expr) -> Iterator[str]:
    for call in ast.walk(expression):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == MARKER
        ):
            yield from (str(each.value) for each in call.args if isinstance(each, ast.Constant))
