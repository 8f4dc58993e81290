"""What a program said of errors that nobody thought of: those that it ended by, and those of its child processes."""

import re

_TRACEBACK = "Traceback (most recent call last)"
_LOG_LINE = re.compile(r'\{"ts":|\d{4}-\d\d-\d\d ')


def died_of(log: str) -> str:
    """Return the error whose traceback a log ends with, "" where it ends otherwise.

    A traceback that something was logged after was that of an error which the program survived.
    """
    _, found, after = log.rpartition(_TRACEBACK)
    if not found or any(_LOG_LINE.match(line) for line in after.splitlines()):
        return ""
    return _said(after)


def raised(log: str) -> list[str]:
    """Return the error of each traceback in a log, also where the program went on: a child process may have died of it.

    One traceback may say of another what came of it; the last one of those counts. What the program itself has logged
    with its traceback, in a line of JSON or behind one of text, is an error that it expects, as of a full disk.
    """
    errors: list[str] = []
    traceback: list[str] | None = None
    before = ""
    for line in [*log.splitlines(), '{"ts":']:
        if _LOG_LINE.match(line):
            if traceback is not None and " ERROR " not in before:
                errors.append(_said("\n".join(traceback)))
            traceback, before = None, line
        elif _TRACEBACK in line:
            traceback = []
        elif traceback is not None:
            traceback.append(line)
        else:
            before = ""
    return errors


def _said(traceback: str) -> str:
    """Return the last line of a traceback that has words."""
    said = [line for line in (line.strip(" |+-") for line in traceback.splitlines()) if line]
    return said[-1] if said else _TRACEBACK
