"""What became of each statement in a run of the tests, from the JUnit files that the run wrote."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from tests.walk import STATEMENTS, Statement

PASSED, SKIPPED, FAILED, NOT_RUN = "passed", "skipped", "FAILED", "not run"
_WORST_LAST = (PASSED, SKIPPED, NOT_RUN, FAILED)


def outcomes(files: Iterable[Path]) -> dict[str, str]:
    """Return the outcome of each test function, as FILE::FUNCTION below ``tests``: the worst of its cases."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        try:
            root = ElementTree.parse(file).getroot()
        except ElementTree.ParseError:
            continue  # a run that was killed has said nothing of its tests
        for case in root.iter("testcase"):
            path = case.get("classname", "").removeprefix("tests.").replace(".", "/")
            bad = case.find("failure") is not None or case.find("error") is not None
            outcome = FAILED if bad else SKIPPED if case.find("skipped") is not None else PASSED
            found[f"{path}.py::{case.get('name', '').partition('[')[0]}"].append(outcome)
    return {test: max(cases, key=_WORST_LAST.index) for test, cases in found.items()}


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
