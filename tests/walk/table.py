"""What became of each statement in a run of the tests, from the JUnit files that the run wrote."""

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from tests.walk import STATEMENTS, Statement

PASSED, SKIPPED, FAILED, NOT_RUN = "passed", "skipped", "FAILED", "not run"
_WORST_LAST = (PASSED, SKIPPED, NOT_RUN, FAILED)


def outcomes(files: Iterable[Path]) -> dict[str, str]:
    """Return the outcome of each test function, as FILE::FUNCTION below ``tests``: the worst of its cases."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for case in _cases(files):
        outcome = FAILED if _reason(case) is not None else SKIPPED if case.find("skipped") is not None else PASSED
        found[re.split(r"[\[@]", _test(case))[0]].append(outcome)  # @ begins the name of pytest-xdist's group
    return {test: max(cases, key=_WORST_LAST.index) for test, cases in found.items()}


def failures(files: Iterable[Path]) -> list[str]:
    """Return two lines for each case that failed: its name, and the first line of why."""
    lines = []
    for case in _cases(files):
        if (reason := _reason(case)) is not None:
            why = (reason.get("message") or "").partition("\n")[0][:300]
            lines += [f"FAILED tests/{_test(case)}", f"  {why}"]
    return lines


def _cases(files: Iterable[Path]) -> Iterator[ElementTree.Element]:
    for file in files:
        with contextlib.suppress(ElementTree.ParseError):  # of a run that was killed
            yield from ElementTree.parse(file).getroot().iter("testcase")


def _test(case: ElementTree.Element) -> str:
    path = case.get("classname", "").removeprefix("tests.").replace(".", "/")
    return f"{path}.py::{case.get('name', '')}"


def _reason(case: ElementTree.Element) -> ElementTree.Element | None:
    failure = case.find("failure")
    return failure if failure is not None else case.find("error")


def result(statement: Statement, known: dict[str, str]) -> str:
    """Return the worst outcome of the tests that show a statement."""
    return max((known.get(test, NOT_RUN) for test in statement.shown), key=_WORST_LAST.index)


def table(files: Iterable[Path]) -> list[str]:
    """Return the lines of the table: document, what becomes of the statement, the result, the statement, its tests."""
    known = outcomes(files)
    lines = ["The documents' statements:"]
    for each in STATEMENTS:
        names = ", ".join(dict.fromkeys(test.rpartition("::")[2] for test in each.shown))
        lines.append(f"{each.document}  {each.here:12}  {result(each, known):7}  {each.text}  ({names})")
    good = sum(result(each, known) == PASSED for each in STATEMENTS)
    return [*lines, f"{good} of {len(STATEMENTS)} statements are shown"]
