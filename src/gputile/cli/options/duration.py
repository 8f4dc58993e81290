"""Reads a time that somebody gives a command, as kubectl takes it."""

import re
from typing import Final

from gputile.cli.output.streams import fail

FOR_EVER_S: Final = 1e9
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")


def duration_s(text: str) -> float:
    """Return the seconds of a time as kubectl takes it: 10s, 1m30s, 500ms, or seconds; 0 is without a limit.

    Leaves the program where it is none.
    """
    if text.isascii() and text.isdigit():
        seconds = float(text)
    elif text and not _PART.sub("", text):
        seconds = sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(text))
    else:
        fail(f"--request-timeout {text}: say a time as 10s, 1m30s or 500ms; 0 waits for ever")
    return min(seconds or FOR_EVER_S, FOR_EVER_S)
