"""Checks bounds of numbers, amounts as numbers or percentages, and values that are one of a few."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken, Json

_PERCENT: Final = re.compile(r"[0-9]+%", re.ASCII)
_MOST_DIGITS: Final = 19  # of what counts in 64 bits
_NOT_COUNTED: Final = 2**63
_LARGEST_PORT: Final = 65535
_MOST_FILE_MODE: Final = 0o777


def outside(value: float, least: int, most: int | None = None, unit: str = "") -> str | None:
    """Return why a number of ``unit`` is not one from ``least`` to ``most``, None where it is one."""
    if least <= value and (most is None or value <= most):
        return None
    bounds = f"greater than or equal to {least}" if most is None else f"between {least} and {most}, inclusive"
    bounds = f"{least} to {most} {unit}" if unit else bounds
    return f"Invalid value: {value}: must be {bounds}"


def broken_least(path: str, owner: Json, least: int, field: str) -> Iterator[Broken]:
    """Yield what is wrong with a number of ``least`` or more."""
    if field in owner and (why := outside(owner[field], least)):
        yield f"{path}.{field}", why


def broken_port(number: float) -> str | None:
    """Return why a number is none of a port, None where it is one."""
    return outside(number, 1, _LARGEST_PORT)


def one_of(path: str, value: str, valid: Iterable[str]) -> Iterator[Broken]:
    """Yield what is wrong with a value that must be one of a few."""
    choices = tuple(valid)
    if value not in choices:
        yield path, f"Unsupported value: {shown(value)}: supported values: {', '.join(map(shown, choices))}"


def broken_file_mode(mode: float) -> str | None:
    """Return why a number is no permissions of a file, None where it is."""
    rule = f"must be between 0 and {_MOST_FILE_MODE}, which is 0777 in octal"
    return None if 0 <= mode <= _MOST_FILE_MODE else f"Invalid value: {mode}: {rule}"


def broken_share(value: Any, *, at_most_all: bool = True) -> str | None:
    """Return why ``value`` is no number or percentage of pods; ``at_most_all`` says that 100 % is the most."""
    if not isinstance(value, str):
        return outside(value, 0)
    percent = percentage(value)
    if percent is None:
        return f'Invalid value: {shown(value)}: must be a whole number, or a percentage as "25%"'
    return f"Invalid value: {shown(value)}: must not be greater than 100%" if at_most_all and percent > 100 else None


def is_no_share(value: Any) -> bool:
    """Return whether a number or percentage is zero."""
    return (percentage(value) if isinstance(value, str) else value) == 0


def percentage(text: str) -> int | None:
    """Return the number of a percentage, None for any other text; 2**63 stands for all that 64 bits do not hold."""
    if not _PERCENT.fullmatch(text):
        return None
    digits = text[:-1].lstrip("0") or "0"
    return min(int(digits), _NOT_COUNTED) if len(digits) <= _MOST_DIGITS else _NOT_COUNTED
