"""What a program that has ended said last: an error that nobody thought of, or why it could not go on."""

import re

_TRACEBACK = "Traceback (most recent call last)"
_LOG_LINE = re.compile(r'\{"ts":|\d{4}-\d\d-\d\d ')


def died_of(log: str) -> str:
    """Return the error whose traceback a log ends with, "" where it ends otherwise.

    A traceback that something was logged after was that of an error which the program survived.
    """
    _, found, after = log.rpartition(_TRACEBACK)
    lines = after.splitlines()
    if not found or any(_LOG_LINE.match(line) for line in lines):
        return ""
    said = [line for line in (line.strip(" |+-") for line in lines) if line]
    return said[-1] if said else _TRACEBACK
